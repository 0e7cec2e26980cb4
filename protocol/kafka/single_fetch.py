"""Fetch requests of a consumer for one partition, without a session (v12 to v17), and their answers. Pure.

librdkafka and others send these. A consumer sends the same bytes again and again, except for the correlation id and the offset. So the
decoded form of the other bytes is kept (`find`), and an answer with records is filled into a layout (`SingleFetch.answer`).
`fetch_codec` decodes and encodes everything else; tests compare both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from protocol.kafka import fetch_codec
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition, TopicKey
from protocol.kafka.framing import MalformedRequest, Part, unsigned_varint
from protocol.types import Buffer

FLEXIBLE_SINCE, TOPIC_IDS_SINCE, REPLICA_STATE_SINCE = 12, 13, 15
KEPT_MAX = 4096
"""Limit of the decoded forms that are kept."""
FRAME_MAX = 512
"""Bytes of a request. No request for one partition is larger, except with a very long topic name."""

_ONE = 2
"""The compact length of an array with one element."""
_WITHOUT_SESSION = b"\xff\xff\xff\xff"
_FIXED_V12, _FIXED_V15 = 25, 21
"""Bytes before the topics; the last four are the session epoch."""
_UUID_BYTES = 16
_SHORT_NAME_MAX = 0x7F
"""The compact length of a name that has its length in one byte."""
_INDEX_AND_EPOCH = 8
_OFFSET = Struct(">q")
_END = b"\x00\x00\x00"
"""No tagged fields: of the partition, of its topic, of the answer."""


class SingleFetch:
    """What such requests have in common. `request` is one of them, with some offset."""

    __slots__ = ("_layout", "_start", "key", "request", "version", "wanted")

    def __init__(self, version: int, request: FetchRequest, key: TopicKey, wanted: FetchRequestPartition) -> None:
        self.version = version
        self.request = request
        self.key = key
        self.wanted = wanted
        nothing = [(key, [FetchPartitionData(wanted.partition, 0)])]
        (body,) = fetch_codec.encode_response(version, 0, 0, 0, nothing)
        numbers = Struct(">qqqBi")
        self._start = b"\x00" + bytes(
            body[: -numbers.size - 1 - len(_END)]
        )  # the header of an answer ends with a tag count
        self._layout = Struct(f">ii{len(self._start)}sqqqBi")

    def at(self, offset: int) -> FetchRequestPartition:
        """The partition of the request that fetches from `offset`."""
        return FetchRequestPartition._make((*self.wanted[:2], offset, *self.wanted[3:]))

    def request_at(self, offset: int) -> FetchRequest:
        """The whole request that fetches from `offset`."""
        return self.request._replace(topics=[(self.key, [self.at(offset)])])

    def answer(self, correlation_id: int, data: FetchPartitionData, size: int) -> Sequence[Part]:
        """A complete frame with `size` > 0 bytes of records, without an error, hint or aborted transaction."""
        start = self._start
        length = unsigned_varint(size + 1)
        whole = self._layout.size - 4 + len(length) + size + len(_END)
        aborted = 0 if data.aborted_transactions is None else 1  # the compact length of no list, and of an empty one
        head = self._layout.pack(
            whole,
            correlation_id,
            start,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            aborted,
            data.preferred_read_replica,
        )
        if data.stored is not None:
            return (head + length, data.stored, _END)
        return (head + length, *data.records, _END)


class Found(NamedTuple):
    """A request: its common form, and its offset."""

    single: SingleFetch
    offset: int


def find(version: int, frame: Buffer, at: int) -> Found | None:
    """The request whose body starts at `at`; None: it is another kind of fetch, or malformed."""
    if version < FLEXIBLE_SINCE or len(frame) > FRAME_MAX:
        return None
    begin = at
    try:
        at += _FIXED_V12 if version < REPLICA_STATE_SINCE else _FIXED_V15
        if frame[at] != _ONE or frame[at - 4 : at] != _WITHOUT_SESSION:
            return None
        if version >= TOPIC_IDS_SINCE:
            at += 1 + _UUID_BYTES
        elif frame[at + 1] > _SHORT_NAME_MAX:
            return None
        else:
            at += 1 + frame[at + 1]
        if frame[at] != _ONE:
            return None
        at += 1 + _INDEX_AND_EPOCH
        after = at + _OFFSET.size
        single = _decoded(version, bytes(frame[begin:at]), bytes(frame[after:]))
        return None if single is None else Found(single, _OFFSET.unpack_from(frame, at)[0])
    except IndexError:
        return None


@lru_cache(maxsize=KEPT_MAX)
def _decoded(version: int, before: bytes, after: bytes) -> SingleFetch | None:
    """The common form of requests with these bytes before and after the offset. None: they are of another kind, or malformed."""
    try:
        request = fetch_codec.decode_request(version, before + bytes(_OFFSET.size) + after, 0)
    except MalformedRequest:
        return None
    if request.replica_id >= 0 or request.forgotten or len(request.topics) != 1 or len(request.topics[0][1]) != 1:
        return None
    key, (wanted,) = request.topics[0]
    return SingleFetch(version, request, key, wanted)
