"""Kafka's checkpoint files: small texts, written atomically (LOG-3). A broken one is reset with a warning (FLT-27).

recovery-point-offset-checkpoint, replication-offset-checkpoint,      leader-epoch-checkpoint (in each log's directory):
log-start-offset-checkpoint (in each log directory):
    0                            version                                  0
    2                            number of lines that follow              2
    orders 0 1234                topic partition offset                   0 0         epoch, its first offset
    orders 1 99                                                           3 1200
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence

from broker.storage.filesystem import FileSystem
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"


def _lines(data: bytes) -> list[list[str]]:
    """The rows, split at blanks. Raises ValueError."""
    lines = data.decode("utf-8").splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise ValueError("it does not begin with version 0 and a count")
    rows = [line.split(" ") for line in lines[2:]]
    if len(rows) != int(lines[1]):
        raise ValueError(f"{len(rows)} rows, {lines[1]} announced")
    return rows


def _text(rows: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(rows)), *rows)).encode()


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _text([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Raises ValueError for another shape or a negative offset."""
    offsets = {}
    for row in _lines(data):
        topic, partition, offset = row
        if int(offset) < 0 or int(partition) < 0:
            raise ValueError(f"{' '.join(row)}: a negative number")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def encode_epochs(entries: Sequence[tuple[int, int]]) -> bytes:
    return _text([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """(epoch, start offset), both increasing (INV-19). Raises ValueError."""
    entries = [(int(row[0]), int(row[1])) for row in _lines(data) if len(row) == 2 or _refuse(row)]
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(entries):
        if next_epoch <= epoch or next_start < start:
            raise ValueError(f"epoch {next_epoch} at {next_start} after epoch {epoch} at {start}")
    if entries and (entries[0][0] < 0 or entries[0][1] < 0):
        raise ValueError("a negative number")
    return entries


def _refuse(row: Sequence[str]) -> bool:
    raise ValueError(f"{' '.join(row)}: epoch and offset are needed")


def read_offsets(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The checkpoint at `path`; empty when there is none or it cannot be read, which is told."""
    data = filesystem.read_file(path)
    if data is None:
        return {}
    try:
        return decode_offsets(data)
    except ValueError as error:
        log.warning("%s is broken (%s): taken as empty", path, error)
        return {}


def read_epochs(filesystem: FileSystem, path: str) -> list[tuple[int, int]] | None:
    """The epochs at `path`; None when the file is not there or broken: the log then tells them."""
    data = filesystem.read_file(path)
    if data is None:
        return None
    try:
        return decode_epochs(data)
    except ValueError as error:
        log.warning("%s is broken (%s): made anew from the log", path, error)
        return None
