"""The file that a broker writes while it records its load, and `ottla replay record` reads (RPL-5). It has no keys and no values.

    file   frame, frame, ...
    frame  int32 length of the body | uint32 CRC-32 of the body | body (msgpack)

The body of the first frame is a map, the `Header`. Each further body is an array `[dropped, refused, estimated, entries]`: the counts
since the start of the file, and what was recorded since the frame before. An entry is one request:

    [PRODUCE, time, client, address, acks, (topic, partition, records, bytes, about) ...]
    [FETCH, time, client, address, min bytes, max wait ms, max bytes, (topic, partition, offset, records, bytes, high watermark) ...]
    [MEMBER, time, client, address, group, topic ...]
    [PRODUCE_IN_TRANSACTION, time, client, address, acks, transactional id, (topic, partition, records, bytes, about) ...]
    [FETCH_COMMITTED, as FETCH: of a reader of committed records]
    [END, time, client, address, transactional id, how: COMMIT, ABORT or INIT]
    [OFFSETS, time, client, address, transactional id, group, (topic, partition) ...]

- `time` is in seconds of the broker's monotonic clock, when the request arrived. The header has both clocks at one moment.
- A produce lists the partitions that were appended to. `about` is the attributes of the batch, or, if the topic is compacted,
  `[attributes, bytes of all keys, hashes of the keys (KEY_HASH_SIZE bytes each)]`.
- A fetch lists the partitions that returned records. If none did, it lists the first one that it asked for, with 0 records.
- A member of a group names the topics that it subscribes to or commits; none if the request does not say.
- An end is an EndTxn or an InitProducerId that succeeded. The latter aborts what an earlier producer has left open, if anything.
- Offsets are a TxnOffsetCommit that succeeded. What was committed is not there: it would mean nothing in another cluster.
- Entries are written when the request is answered, so their times are not in order.

A file that was cut off anywhere, by a crash, is read up to its last whole frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, NamedTuple

import msgpack

VERSION = 3
"""Version 1 had no transactions, version 2 no keys and no offsets in transactions. Both are still read."""
PRODUCE, FETCH, MEMBER, PRODUCE_IN_TRANSACTION, FETCH_COMMITTED, END, OFFSETS = range(7)
COMMIT, ABORT, INIT = range(3)
PRODUCE_HEAD, FETCH_HEAD, TRANSACTIONAL_HEAD = 5, 7, 6
"""Fields before the first partition. The fields of all partitions follow each other, because a nested array costs time."""
OF_PRODUCED, OF_FETCHED = 5, 6
"""Fields of one partition."""
OFFSETS_HEAD, OF_OFFSETS = 6, 2
KEY_HASH_SIZE = 8
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""A longer frame is not one of ours. The longest has one request for 20,000 partitions."""

_HEAD = struct.Struct(">II")


class NotARecording(ValueError):
    """The file does not start with a header. The text says what is there instead."""


@dataclass(frozen=True, slots=True)
class Header:
    """`wall_ns` is the broker's wall clock, in nanoseconds since 1970 UTC, when its monotonic clock showed `monotonic_s`."""

    recording: str
    broker: int
    wall_ns: int
    monotonic_s: float


class Counts(NamedTuple):
    """Requests that are not in the file. `estimated`: fetches that are, but whose records were not all counted."""

    dropped: int = 0
    refused: int = 0
    estimated: int = 0


def header_frame(header: Header) -> bytes:
    return _frame({"version": VERSION, **asdict(header)})


def entries_frame(counts: Counts, entries: Sequence[Sequence[Any]]) -> bytes:
    return _frame([*counts, entries])


def _frame(body: object) -> bytes:
    packed: bytes = msgpack.packb(body)
    return _HEAD.pack(len(packed), zlib.crc32(packed)) + packed


class RecordingReader:
    """Reads one file, frame by frame. After the last entry, `counts` are final and `is_cut` tells whether the file ends in a frame."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises NotARecording."""
        self._file = file
        self.counts = Counts()
        self.is_cut = False
        body = self._body()
        if not isinstance(body, dict) or body.get("version") not in range(1, VERSION + 1):
            raise NotARecording(f"it does not start with the header of a version {VERSION} recording")
        try:
            self.header = Header(
                str(body["recording"]), int(body["broker"]), int(body["wall_ns"]), float(body["monotonic_s"])
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise NotARecording(f"its header is incomplete: {problem}") from None

    def blocks(self) -> Iterator[list[Any]]:
        """The entries of each frame. Stops before a frame that is cut off or damaged."""
        while True:
            body = self._body()
            if body is None:
                return
            if not (isinstance(body, list) and len(body) == 4 and isinstance(body[3], list)):
                self.is_cut = True
                return
            self.counts = Counts(*body[:3])
            yield body[3]

    def _body(self) -> Any:
        """None at the end of what can be read."""
        head = self._file.read(_HEAD.size)
        if not head:
            return None
        if len(head) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            packed = self._file.read(length) if length <= FRAME_BYTES_MAX else b""
            if len(packed) == length and zlib.crc32(packed) == checksum:
                try:
                    return msgpack.unpackb(packed)
                except (ValueError, msgpack.UnpackException):
                    pass
        self.is_cut = True
        return None
