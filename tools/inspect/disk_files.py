"""Reads the files of a broker's log directory in Kafka's formats. Does not use the broker's code, because it checks that code.

A running broker may append to files, and add and remove files: a removed file reads as None or empty.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from protocol.kafka.record_batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, crc_is_valid, parse_header
from protocol.numbers import is_plain_number
from protocol.types import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
HOLES = "ottla.holes"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|timeindex|snapshot|txnindex)")
_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[0-9]{1,19}")
_TOPIC_ID = re.compile(r"topic_id: *([A-Za-z0-9_-]{22})")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_LOCK_KINDS = ("FLOCK", "OFDLCK", "POSIX")
"""How /proc/locks names the locks of a log directory: a broker of ottla takes the first two, Kafka takes the last."""


class BadFile(ValueError):
    """A file with a wrong format; the message says what is wrong."""


class StoredBatch(NamedTuple):
    """A batch in a log file: its position, its header, its bytes, and whether its CRC is right."""

    position: int
    header: BatchHeader
    data: bytes
    is_intact: bool


class Damage(NamedTuple):
    """From `position` on, the file does not contain whole batches."""

    position: int
    reason: str
    is_cut_off: bool
    """Whether it may be the start of a batch that was not written completely."""


class ProducerRow(NamedTuple):
    """An entry of a producer snapshot."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


class AbortedRow(NamedTuple):
    """An entry of a transaction index; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def partition_of(name: str) -> TopicPartition | None:
    """The partition of a directory's name; None for other directories (deleted, stray, future, not a log)."""
    found = _PARTITION.fullmatch(name)
    return TopicPartition(found[1], int(found[2])) if found else None


def is_log_directory(path: Path) -> bool:
    """Whether it is an entry of `log.dirs`."""
    return any((path / name).exists() for name in (META, LOCK, RECOVERY_POINTS, CLEAN_SHUTDOWN))


def partition_directories(log_dir: Path) -> dict[TopicPartition, Path]:
    found = {}
    for path in sorted(log_dir.iterdir()):
        tp = partition_of(path.name)
        if tp is not None and path.is_dir():
            found[tp] = path
    return found


def segment_files(directory: Path) -> dict[int, set[str]]:
    """Base offset -> suffixes of the existing files. Raises OSError."""
    found: dict[int, set[str]] = {}
    for path in directory.iterdir():
        match = SEGMENT_FILE.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
    return dict(sorted(found.items()))


def read(path: Path) -> bytes | None:
    """The content; None if the file does not exist. Raises OSError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def batches(path: Path) -> Iterator[StoredBatch | Damage]:
    """The current content of a log file, in order; at most one Damage, at the end. Raises OSError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = 0
        while head := file.read(HEADER_SIZE):
            if len(head) < HEADER_SIZE:
                yield Damage(position, f"{len(head)} bytes are not a batch", True)
                return
            header = parse_header(head)
            if header.magic != MAGIC or header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
                is_empty = not any(head)
                reason = (
                    "zeros"
                    if is_empty
                    else f"length {header.batch_length}, magic {header.magic}: not a batch of format 2"
                )
                yield Damage(position, reason, is_empty)
                return
            # Checked before reading, which allocates as much memory as the header says, up to 2 GB.
            left = os.fstat(file.fileno()).st_size - position
            if header.size_in_bytes > left:
                yield Damage(position, f"a batch of {header.size_in_bytes} bytes, but only {left} are left", True)
                return
            body = file.read(header.size_in_bytes - HEADER_SIZE)
            data = head + body
            yield StoredBatch(position, header, data, crc_is_valid(data, 0, header))
            position += len(data)


def _rows(data: bytes, columns: int) -> list[list[str]]:
    if not data:
        return []  # Kafka creates these files empty
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise BadFile("it is not text") from None
    if len(lines) < 3 or lines[0] != "0" or lines[-1]:
        raise BadFile("it does not start with version 0 and a count, or its last line is cut off")
    rows = [line.split(" ") for line in lines[2:-1]]
    if lines[1] != str(len(rows)):
        announced = lines[1][:20].encode("unicode_escape").decode()
        raise BadFile(f"expected {announced} rows, found {len(rows)}")
    if any(len(row) != columns or not all(map(_NUMBER.fullmatch, row[columns - 2 :])) for row in rows):
        raise BadFile(f"a row does not have {columns} columns, with numbers in the last two")
    return rows


def offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint; empty if it does not exist. Raises BadFile, OSError."""
    data = read(path)
    rows = [] if data is None else _rows(data, 3)
    return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def leader_epochs(directory: Path) -> list[tuple[int, int]] | None:
    """(epoch, first offset); None if the file does not exist. Raises BadFile, OSError."""
    data = read(directory / LEADER_EPOCHS)
    return None if data is None else [(int(epoch), int(start)) for epoch, start in _rows(data, 2)]


def topic_id(directory: Path) -> str | None:
    """The id; None if the file does not exist. Raises BadFile, OSError."""
    data = read(directory / PARTITION_METADATA)
    if data is None:
        return None
    for line in data.decode(errors="replace").splitlines():
        if found := _TOPIC_ID.fullmatch(line.strip()):
            return found[1]
    raise BadFile("it has no line topic_id: with 22 characters of base64")


def meta(log_dir: Path) -> dict[str, str]:
    """The content of meta.properties; empty if the file does not exist. Raises BadFile, OSError."""
    data = read(log_dir / META)
    if data is None:
        return {}
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip() and line[0] != "#"]
    if any("=" not in line for line in lines):
        raise BadFile("a line is not key=value")
    found = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    if found.get("version") != "0" or not is_plain_number(found.get("broker.id", "")):
        raise BadFile("expected version=0 and a broker.id")
    return found


def offset_index(path: Path, base_offset: int) -> list[tuple[int, int]] | None:
    """(offset, position), without Kafka's padding of zeros; None if the file does not exist. Raises BadFile, OSError."""
    rows = _entries(path, _OFFSET_ENTRY)
    return None if rows is None else [(base_offset + relative, position) for relative, position in rows]


def time_index(path: Path, base_offset: int) -> list[tuple[int, int]] | None:
    """(timestamp, offset), as in `offset_index`."""
    rows = _entries(path, _TIME_ENTRY)
    return None if rows is None else [(timestamp, base_offset + relative) for timestamp, relative in rows]


def _entries(path: Path, layout: struct.Struct) -> list[tuple[int, int]] | None:
    data = read(path)
    if data is None:
        return None
    if len(data) % layout.size:
        raise BadFile(f"{len(data)} bytes are not a multiple of {layout.size}")
    # A running or killed Kafka leaves up to 10 MB of zeros at the end. No entry is all zeros: a segment's first batch gets no entry.
    used = len(data.rstrip(b"\0"))
    rows: list[tuple[int, int]] = list(layout.iter_unpack(data[: -(-used // layout.size) * layout.size]))
    return rows


def transaction_index(path: Path) -> list[AbortedRow] | None:
    """The entries; None if the file does not exist. Raises BadFile, OSError."""
    data = read(path)
    if data is None:
        return None
    if len(data) % _ABORTED_ENTRY.size:
        raise BadFile(f"{len(data)} bytes are not a multiple of {_ABORTED_ENTRY.size}")
    rows = list(_ABORTED_ENTRY.iter_unpack(data))
    if any(version != 0 for version, *_ in rows):
        raise BadFile("an entry does not have version 0")
    return [AbortedRow._make(row[1:]) for row in rows]


def producer_snapshot(path: Path) -> list[ProducerRow] | None:
    """The entries; None if the file does not exist. Raises BadFile, OSError."""
    data = read(path)
    if data is None:
        return None
    if len(data) < _SNAPSHOT_HEAD.size:
        raise BadFile(f"{len(data)} bytes are not a producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1 or crc != crc32c(data[6:]):
        raise BadFile(f"unknown version {version}, or the CRC does not match")
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise BadFile(f"{count} producers do not fit into {len(data)} bytes")
    return [ProducerRow._make(row) for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def is_in_use(log_dir: Path) -> bool:
    """Whether /proc/locks lists the directory's lock. Does not try to take the lock, because a starting broker must get it."""
    try:
        inode = (log_dir / LOCK).stat().st_ino
        rows = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any(row.split()[1] in _LOCK_KINDS and f":{inode} " in row for row in rows)
