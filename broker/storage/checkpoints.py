"""Kafka's checkpoint files: small texts, written atomically (LOG-3). A broken one is reset with a warning (FLT-27).

recovery-point-offset-checkpoint, replication-offset-checkpoint,      leader-epoch-checkpoint (in each log's directory):
log-start-offset-checkpoint,
cleaner-offset-checkpoint,
ottla.holes (in each log directory):
    0                            version                                  0
    2                            number of lines that follow              2
    orders 0 1234                topic partition offset                   0 0         epoch, its first offset
    orders 1 99                                                           3 1200
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping, Sequence

from broker.storage.disk.filesystem import FileSystem
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
HOLES = "ottla.holes"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_NUMBER = re.compile(r"[0-9]{1,19}")


def _rows(data: bytes, columns: int) -> list[list[str]]:
    """The rows, split at blanks. Raises ValueError, also if the last line has no newline: it may have been longer."""
    lines = data.decode("utf-8").split("\n")
    if len(lines) < 3 or lines[0] != "0" or lines[-1]:
        raise ValueError("expected version 0 in line 1, a count in line 2, and a newline at the end")
    rows = [line.split(" ") for line in lines[2:-1]]
    if len(rows) != _number(lines[1]):
        raise ValueError(f"line 2: expected {lines[1]} rows, found {len(rows)}")
    for number, row in enumerate(rows, 3):
        if len(row) != columns:
            raise ValueError(f"line {number}: expected {columns} columns, found {len(row)}")
    return rows


def _number(text: str) -> int:
    """Digits only. int() would also accept signs, blanks, underscores and digits of other scripts; only a broken file has them."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def _text(rows: Sequence[str]) -> bytes:
    return "\n".join(("0", str(len(rows)), *rows, "")).encode()


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _text([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Raises ValueError if the content is not a checkpoint of offsets."""
    return {
        TopicPartition(topic, _number(partition)): _number(offset)
        for topic, partition, offset in _rows(data, columns=3)
    }


def encode_epochs(entries: Sequence[tuple[int, int]]) -> bytes:
    return _text([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Entries (leader epoch, start offset), both increasing (INV-19). Raises ValueError."""
    entries = [(_number(epoch), _number(start)) for epoch, start in _rows(data, columns=2)]
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(entries):
        if next_epoch <= epoch or next_start < start:
            raise ValueError(f"epoch {next_epoch} at {next_start} after epoch {epoch} at {start}")
    return entries


def read_offsets(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The checkpoint at `path`, as `offsets_of`. Raises OSError."""
    return offsets_of(filesystem.read_file(path), path)


def offsets_of(data: bytes | None, path: str) -> dict[TopicPartition, int]:
    """The content of the checkpoint at `path`. Empty if the file does not exist (None) or, with a warning, if it is broken."""
    if not data:
        return {}  # Kafka creates the files empty
    try:
        return decode_offsets(data)
    except ValueError as error:
        log.warning("%s is broken (%s): the broker treats it as empty", path, error)
        return {}


def read_epochs(filesystem: FileSystem, path: str) -> list[tuple[int, int]] | None:
    """The leader epochs at `path`. None if the file does not exist or is broken: recovery then reads them from the log."""
    data = filesystem.read_file(path)
    if data is None:
        return None
    try:
        return decode_epochs(data)
    except ValueError as error:
        log.warning("%s is broken (%s): it is rebuilt from the log", path, error)
        return None
