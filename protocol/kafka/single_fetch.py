"""Fetch requests of a consumer for one partition, without a session (v4 to v18), and their answers. Pure.

Most clients send these: those without sessions, and others when they read one partition of a broker. A consumer sends the same bytes
again and again, except for the correlation id and the offset. So the decoded form of the other bytes is kept (`find`), and an answer
with records is filled into a layout (`SingleFetch.answer`). `fetch_codec` decodes and encodes everything else; tests compare both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from librt.strings import read_i64_be

from protocol.kafka import fetch_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import (
    READ_COMMITTED,
    FetchPartitionData,
    FetchRequest,
    FetchRequestPartition,
)
from protocol.kafka.framing import MalformedRequest, Part, head_of, response_header, unsigned_varint
from protocol.kafka.wire import TopicKey
from protocol.types import Buffer

LOG_START_SINCE: Final = 5
SESSIONS_SINCE: Final = 7
LEADER_EPOCH_SINCE: Final = 9
READ_REPLICA_SINCE: Final = 11
FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13
REPLICA_STATE_SINCE: Final = 15
VERSIONS: Final = range(4, 19)
KEPT_MAX: Final = 4096
"""Limit of the decoded forms that are kept."""
FRAME_MAX: Final = 512
"""Bytes of a request. No request for one partition is larger, except with a very long topic name."""

_WITHOUT_SESSION: Final = 0xFFFFFFFF
"""No session, and the final epoch. With the id of a session, the request closes it."""
_SHORT: Final = 2
_COMPACT: Final = 1
_ID: Final = 16
"""Sizes of what a topic's key begins with: a name's length in two bytes, or in one, which counts one more. An id has no length."""
_OFFSET: Final = Struct(">q")
_PROBES: Final = (0x0123456789ABCDEF, 0x7EDCBA9876543210)
_END: Final = b"\x00\x00\x00"
"""No tagged fields: of the partition, of its topic, of the answer."""


class _Layout:
    """Where a request of a version has the offset, if it has one topic and one partition.

    `topics_at`: bytes before the topics. `counts`: bytes of the length of an array, whose last byte is `one` for one element.
    `index`: bytes between the length of the partitions and the offset.
    """

    __slots__ = ("counts", "has_sessions", "index", "key", "one", "topics_at")

    def __init__(self, version: int) -> None:
        is_flexible = version >= FLEXIBLE_SINCE
        self.has_sessions = version >= SESSIONS_SINCE
        self.topics_at = (13 if version >= REPLICA_STATE_SINCE else 17) + (8 if self.has_sessions else 0)
        self.counts, self.one = (1, 2) if is_flexible else (4, 1)
        self.key = _ID if version >= TOPIC_IDS_SINCE else _COMPACT if is_flexible else _SHORT
        self.index = 8 if version >= LEADER_EPOCH_SINCE else 4


_LAYOUTS: Final = {version: _Layout(version) for version in VERSIONS}


class SingleFetch:
    """What such requests have in common. `request` is one of them, and `wanted` its partition, with some offset.

    `max_bytes`: of the partition, and of all partitions of the answer.
    """

    __slots__ = ("_layout", "_start", "key", "max_bytes", "request", "version", "wanted")

    def __init__(self, version: int, request: FetchRequest, key: TopicKey, wanted: FetchRequestPartition) -> None:
        self.version = version
        self.request = request
        self.key = key
        self.wanted = wanted
        self.max_bytes = min(request.max_bytes, wanted.partition_max_bytes)
        nothing = [(key, [FetchPartitionData(wanted.partition, 0)])]
        (body,) = fetch_codec.encode_response(version, 0, 0, 0, nothing)
        if version >= FLEXIBLE_SINCE:
            numbers, end = "qqqBi", 1 + len(_END)
        elif version >= READ_REPLICA_SINCE:
            numbers, end = "qqqiii", 0
        else:
            numbers, end = "qqqii" if version >= LOG_START_SINCE else "qqii", 0
        size = Struct(f">{numbers}").size + end
        self._start = response_header(ApiKey.FETCH, version, 0)[4:] + bytes(body[:-size])
        self._layout = Struct(f">ii{len(self._start)}s{numbers}")

    @property
    def is_committed(self) -> bool:
        """Whether only committed records are wanted. The answer then has a list of aborted transactions."""
        return self.request.isolation_level == READ_COMMITTED

    def request_at(self, offset: int) -> FetchRequest:
        """The whole request that fetches from `offset`."""
        return self.request._replace(topics=[(self.key, [self.wanted._replace(fetch_offset=offset)])])

    def answer(
        self, correlation_id: int, watermark: int, stable: int, log_start: int, records: Sequence[Part], size: int
    ) -> Sequence[Part]:
        """A complete frame with `size` > 0 bytes of records, without an error, hint or aborted transaction."""
        version, layout, start = self.version, self._layout, self._start
        whole = layout.size - 4 + size
        if version >= FLEXIBLE_SINCE:
            length = unsigned_varint(size + 1)
            whole += len(length) + len(_END)
            head = layout.pack(whole, correlation_id, start, watermark, stable, log_start, self.is_committed, -1)
            return (head + length, *records, _END)
        aborted = 0 if self.is_committed else -1
        if version >= READ_REPLICA_SINCE:
            head = layout.pack(whole, correlation_id, start, watermark, stable, log_start, aborted, -1, size)
        elif version >= LOG_START_SINCE:
            head = layout.pack(whole, correlation_id, start, watermark, stable, log_start, aborted, size)
        else:
            head = layout.pack(whole, correlation_id, start, watermark, stable, aborted, size)
        return (head, *records)


def find(version: int, frame: Buffer, at: int) -> tuple[SingleFetch, int] | None:
    """The request whose body starts at `at`: its common form, and its offset. None: it is another kind of fetch, or malformed."""
    layout = _LAYOUTS.get(version)
    if layout is None or len(frame) > FRAME_MAX:
        return None
    data = head_of(frame, FRAME_MAX)
    begin = at
    last = layout.counts - 1
    try:
        at += layout.topics_at
        if layout.has_sessions and read_i64_be(data, at - 8) != _WITHOUT_SESSION:
            return None
        if data[at + last] != layout.one:
            return None
        at += layout.counts
        key = layout.key
        if key == _SHORT:
            at += _SHORT + data[at + 1]
        elif key == _COMPACT:
            if data[at] > 0x7F:
                return None
            at += data[at]
        else:
            at += _ID
        if data[at + last] != layout.one:
            return None
        at += layout.counts + layout.index
        offset = read_i64_be(data, at)
        single = _decoded(version, data[begin:at], data[at + 8 :])
        return None if single is None else (single, offset)
    except IndexError:
        return None


@lru_cache(maxsize=KEPT_MAX)
def _decoded(version: int, before: bytes, after: bytes) -> SingleFetch | None:
    """The common form of requests with these bytes before and after the offset. None: they are of another kind, or malformed.

    `find` looks only at the bytes by which the next request may differ. Two offsets that are read back as they are show that it was right.
    """
    request = None
    for probe in _PROBES:
        try:
            request = fetch_codec.decode_request(version, before + _OFFSET.pack(probe) + after, 0)
        except MalformedRequest:
            return None
        if request.replica_id >= 0 or request.forgotten or len(request.topics) != 1 or len(request.topics[0][1]) != 1:
            return None
        if request.topics[0][1][0].fetch_offset != probe:
            return None
    assert request is not None
    key, (wanted,) = request.topics[0]
    return SingleFetch(version, request, key, wanted)
