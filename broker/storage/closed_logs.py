"""`ottla.closed`: what a clean stop knew of the logs of a directory, so that a start opens none of their files (LOG-2).

    ottla.closed 1 6f21a0c3                       version, CRC-32C of all that follows
    13 1700000000123456789 4711                   the clean-shutdown marker: its size, the time of its write (ns), its inode
    orders-0 ["rgm...",[[0,0]],[[0,560,17...]],8,1700000000001,7,1700000000000,560,[8],""]
                                                  a log: the fields of ClosedLog, as JSON

A log that the file describes wrongly could lose records, so the file is believed only if nobody has used the directory since:

* A start removes the marker and this file, and syncs their directory, before anything else changes. So neither is there after an
  unclean stop.
* Kafka, and versions of ottla that do not know this file, remove only the marker, and write another one. So the file names the marker
  that its stop wrote. It is written, and synced, before that marker gets its name.
* A torn file, or one with a flipped bit, has another CRC.
* A log is as it was closed if its directory has exactly the files that it had, and each log file its size and its time of the last
  write (`recovery.reopen_log`). So a person may remove or replace files of a stopped broker.

Whatever is not believed is opened in the ordinary way, which reads the log's files (`recovery`). Numbers that Kafka's checkpoints have (log
start, recovery point) are not repeated here.
"""

from __future__ import annotations

import binascii
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from broker.storage import checkpoints
from broker.storage.disk.filesystem import FileStamp
from broker.storage.log_types import PARTITION_METADATA
from broker.storage.producers import producer_snapshots
from broker.storage.recovery_rules import EpochEntry
from broker.storage.segment import SegmentEnd, segment_name

log = logging.getLogger(__name__)

FILE = "ottla.closed"
_HEAD = b"ottla.closed 1 "
PRODUCERS_MAX = 64
"""A log with more producers is not described. Its snapshot is read at the start."""


class ClosedSegment(NamedTuple):
    """A log file: size in bytes, and the time of its last write in ns."""

    base_offset: int
    size: int
    modified_ns: int


class ClosedLog(NamedTuple):
    """A log after its last flush.

    `snapshots`: offsets of the producer snapshots that are on the disk. `producers`: the content of a snapshot at the log's end, b"" if the
    log knows no producer. The log has no list of aborted transactions.
    """

    topic_id: str | None
    epochs: Sequence[EpochEntry]
    segments: Sequence[ClosedSegment]
    end: SegmentEnd
    snapshots: Sequence[int]
    producers: bytes

    def names(self) -> set[str]:
        """The names of all files in the log's directory."""
        names = {producer_snapshots.file_name(offset) for offset in self.snapshots}
        for segment in self.segments:
            stem = segment_name(segment.base_offset)
            names |= {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex"}
        names.add(checkpoints.LEADER_EPOCHS)
        if self.topic_id is not None:
            names.add(PARTITION_METADATA)
        return names


def encode(logs: Mapping[str, ClosedLog], marker: FileStamp) -> bytes:
    """The content of the file. `logs`: by the names of their directories."""
    lines = [b"%d %d %d" % marker]
    for name, closed in logs.items():
        producers = binascii.b2a_base64(closed.producers, newline=False).decode()
        row = (closed.topic_id, closed.epochs, closed.segments, *closed.end, closed.snapshots, producers)
        lines.append(f"{name} {json.dumps(row, separators=(',', ':'))}".encode())
    body = b"\n".join(lines) + b"\n"
    return _HEAD + b"%08x\n" % crc32c(body) + body


class ClosedLogs:
    """The logs that a file describes. Each is parsed when it is asked for."""

    def __init__(self, lines: Mapping[str, bytes]) -> None:
        self._lines = dict(lines)

    def __len__(self) -> int:
        return len(self._lines)

    def take(self, name: str) -> ClosedLog | None:
        """The log in the directory of that name, once. None: it is not described."""
        line = self._lines.pop(name, None)
        if line is None:
            return None
        try:
            return _closed_log(line)
        except (ValueError, TypeError) as error:
            log.warning("%s: %s is described in another form: %s", FILE, name, error)
            return None


NO_CLOSED_LOGS = ClosedLogs({})


def decode(data: bytes, marker: FileStamp, path: str) -> ClosedLogs:
    """The logs that the file describes: none if it is broken, or was written before another stop than the one that left `marker`."""
    head, _, body = data.partition(b"\n")
    if head != _HEAD + b"%08x" % crc32c(body):
        log.warning("%s is broken, or of another version, and is not used", path)
        return NO_CLOSED_LOGS
    lines = iter(body.split(b"\n")[:-1])
    if next(lines, b"") != b"%d %d %d" % marker:
        log.info("%s is older than the last stop, and is not used", path)
        return NO_CLOSED_LOGS
    return ClosedLogs(dict(_rows(lines)))


def _rows(lines: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    for line in lines:
        name, _, row = line.partition(b" ")
        yield name.decode(), row


def _closed_log(row: bytes) -> ClosedLog:
    """Raises ValueError and TypeError for another form."""
    topic_id, epochs, segments, next_offset, newest, newest_offset, first, since, snapshots, producers = json.loads(row)
    return ClosedLog(
        topic_id,
        [(epoch, start) for epoch, start in epochs],
        [ClosedSegment(*segment) for segment in segments],
        SegmentEnd(next_offset, newest, newest_offset, first, since),
        snapshots,
        binascii.a2b_base64(producers),
    )
