"""One recording in memory: what the APIs report, in blocks for a file (RPL-5).

Everything here runs on the loop, which also packs the blocks: a thread that packs would hold Python's lock as long, and the loop would
wait for it. A thread writes the packed blocks (`recording_file.py`). An API calls a method before its work, and again
when the answer is known: only a produce that was appended and a fetch that was answered are recorded.
`protocol/recording.py` describes an entry.

Blocks that wait for the thread take at most MEMORY_MAX bytes, roughly. A request that does not fit, in memory or in the file, is
*dropped* and counted. A request that the broker refused is only counted, because its client sends it again. The keys of requests that
have no answer yet take at most as much memory again; requests beyond it are recorded without keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from struct import Struct
from types import MappingProxyType
from typing import Any, Protocol

from broker.network.request_channel import Request
from broker.recording.record_keys import Keys
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import HEADER_SIZE, LOG_OVERHEAD
from protocol.recording import (
    END,
    FETCH,
    FETCH_COMMITTED,
    KEY_HASH_SIZE,
    MEMBER,
    OF_FETCHED,
    OF_PRODUCED,
    OFFSETS,
    PRODUCE,
    PRODUCE_HEAD,
    PRODUCE_IN_TRANSACTION,
    TRANSACTIONAL_HEAD,
    Counts,
    entries_frame,
)
from protocol.types import Buffer, TopicPartition

MEMORY_MAX = 8 * 1024 * 1024
"""Bytes of packed blocks that wait to be written, and the same again of keys of requests without an answer."""
BLOCK_PARTITIONS = 100
"""Partitions that are packed together. More would not stay in the processor's cache until then."""
WRITE_SIZE = 1024 * 1024
"""Packed bytes that are written together. Each write wakes a thread, which takes Python's lock from the loop for a moment."""
BATCHES_COUNTED_MAX = 1_000
"""Batches of one fetch whose records are counted, which takes half a millisecond. The rest is estimated from its bytes."""
NAME_MAX = 255
"""Characters of a client, group or transactional id that are recorded."""
MEMBERS_REMEMBERED = 10_000
"""Members of groups whose next request is not recorded again."""
TOPICS_OF_MEMBER_MAX = 1_000
"""Topics of a member that are recorded. If there are more, none are, and the member counts as one of unknown topics."""
HASHED_DIGITS = 16
KEYS_OF_A_PART = 5
"""So many keys count as a partition of a block, by their bytes."""
NO_KEYS: Mapping[int, Keys] = MappingProxyType({})

_ATTRIBUTES_OFFSET = 22
_ATTRIBUTES_AND_COUNT = Struct(">B34xi")
"""The low byte of a batch's attributes, and its record count."""
_LENGTH_AND_COUNT = Struct(">8xi45xi")
"""From a batch's start: its length, and its record count."""

Entry = tuple[Any, ...]
FetchEntry = tuple[TopicPartition, FetchRequestPartition]


class FetchRead(Protocol):
    """What a fetch read of one partition."""

    @property
    def data(self) -> FetchPartitionData: ...

    @property
    def size(self) -> int: ...


FetchObserver = Callable[[Sequence[FetchEntry], Sequence[FetchRead], TopicPartition | None], None]
"""Gets the partitions that a fetch read, and what it found; both have one order. Then any partition of the fetch's session."""

WriteBlock = Callable[[bytes, int, Callable[[bool], None]], None]
"""Gets frames and the number of their requests, and writes them in a thread. Calls back on the loop, with False if there was no room."""


class Recording:
    """`topics`: record only these; empty: all. `salt`: client and transactional ids are recorded as hashes with it; empty: as they are."""

    def __init__(self, write: WriteBlock, topics: Collection[str] = (), salt: str = "") -> None:
        self._write = write
        self._topics = frozenset(topics)
        self._salt = salt.encode()
        self.key_secret = hashlib.blake2b(self._salt, digest_size=32).digest() if salt else b""
        self._hashes: dict[str, str] = {}
        self._members: set[tuple[str, str, str, tuple[str, ...]]] = set()
        self._block: list[Any] = []
        self._further_parts = self._further_rows = 0  # of the block, beyond one for each entry
        self._packed = bytearray()
        self._packed_requests = self._packed_rows = 0
        self._waiting_size = 0
        self._keys_size = 0  # of requests without an answer
        self._is_full = False
        self._is_stopped = False
        self._beyond_memory = self._beyond_file = 0
        self.requests = self.rows = self.refused = self.estimated = 0

    @property
    def dropped(self) -> int:
        """Requests that had no room, in memory or in the file."""
        return self._beyond_memory + self._beyond_file

    @property
    def counts(self) -> Counts:
        """Without those that had no room in the file: it counts them itself, before this is told."""
        return Counts(self._beyond_memory, self.refused, self.estimated)

    @property
    def is_full(self) -> bool:
        """The file has no more room; everything from then on is dropped."""
        return self._is_full

    # -- what the APIs report -----------------------------------------------------------------------------------------

    def has(self, topic: str) -> bool:
        """Whether the topic is recorded."""
        return not self._topics or topic in self._topics

    def produce(
        self,
        request: Request,
        acks: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        transactional_id: str | None = None,
        keys: Mapping[int, Keys] = NO_KEYS,
    ) -> Entry:
        """What to give to `produced` with the results. To be called before the append, which takes the records away.

        `keys`: place in `entries` -> what is recorded of its keys.
        """
        client = request.header.client_id
        if client is None or self._salt or len(client) > NAME_MAX:
            client = self._hashed(client)
        address = request.connection.remote_address
        received_at = request.received_at
        if len(entries) == 1 and len(entries[0][1]) >= HEADER_SIZE and transactional_id is None and not keys:
            # By far the most common request: no calls, no list.
            (topic, partition), records = entries[0]
            attributes, count = _ATTRIBUTES_AND_COUNT.unpack_from(records, _ATTRIBUTES_OFFSET)
            return (PRODUCE, received_at, client, address, acks, topic, partition, count, len(records), attributes)
        keys_size = sum(len(hashes) for _, hashes in keys.values())
        if self._keys_size + keys_size > MEMORY_MAX:
            keys = NO_KEYS
        else:
            self._keys_size += keys_size
        batches: list[Any] = []
        for at, ((topic, partition), records) in enumerate(entries):
            attributes, count, size = _batch(records)
            batches += (topic, partition, count, size, (attributes, *keys[at]) if at in keys else attributes)
        if transactional_id is not None:
            transactional_id = self._hashed(transactional_id)
            return (PRODUCE_IN_TRANSACTION, received_at, client, address, acks, transactional_id, *batches)
        return (PRODUCE, received_at, client, address, acks, *batches)

    def produced(self, entry: Entry, results: Sequence[ProducePartitionResult]) -> None:
        """Records the produce that `produce` described, without partitions that were refused."""
        if len(results) != 1 or results[0].error or self._topics or entry[-1].__class__ is tuple:
            self._produced_in_part(entry, results)
            return
        block = self._block
        block.append(entry)
        if len(block) >= BLOCK_PARTITIONS:
            self._pack()

    def _produced_in_part(self, entry: Entry, results: Sequence[ProducePartitionResult]) -> None:
        topics = self._topics
        head = PRODUCE_HEAD if entry[0] == PRODUCE else TRANSACTIONAL_HEAD
        self._keys_size -= _keys_size(entry[head:])
        appended: list[Any] = []
        for at, result in enumerate(results):
            first = head + at * OF_PRODUCED
            if not result.error and (not topics or entry[first] in topics):
                appended += entry[first : first + OF_PRODUCED]
        if appended:
            partitions = len(appended) // OF_PRODUCED
            parts = partitions + _keys_size(appended) // (KEYS_OF_A_PART * KEY_HASH_SIZE)
            self._append((*entry[:head], *appended), parts, partitions)
        elif any(result.error for result in results):
            self.refused += 1

    def end(self, request: Request, transactional_id: str, how: int) -> None:
        """A transaction was ended. `how`: COMMIT, ABORT or INIT."""
        client, address = self._hashed(request.header.client_id), request.connection.remote_address
        self._append((END, request.received_at, client, address, self._hashed(transactional_id), how), 1, 1)

    def offsets(
        self, request: Request, transactional_id: str, group: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Offsets of these partitions were committed in a transaction."""
        recorded = [tp for tp in partitions if self.has(tp.topic)]
        if recorded:
            client, address = self._hashed(request.header.client_id), request.connection.remote_address
            head = (OFFSETS, request.received_at, client, address, self._hashed(transactional_id), group[:NAME_MAX])
            self._append((*head, *chain.from_iterable(recorded)), len(recorded), len(recorded))

    def fetch(
        self, request: Request, min_bytes: int, max_wait_ms: int, max_bytes: int, *, is_committed: bool = False
    ) -> FetchObserver:
        """The arguments are the request's own, not what the broker makes of them."""
        kind = FETCH_COMMITTED if is_committed else FETCH

        def answered(
            entries: Sequence[FetchEntry], reads: Sequence[FetchRead], of_session: TopicPartition | None
        ) -> None:
            partitions = self._fetched(entries, reads, of_session)
            if partitions:
                head = (kind, request.received_at, self._hashed(request.header.client_id))
                sizes = (request.connection.remote_address, min_bytes, max_wait_ms, max_bytes)
                rows = len(partitions) // OF_FETCHED
                self._append((*head, *sizes, *partitions), rows, rows)

        return answered

    def _fetched(
        self, entries: Sequence[FetchEntry], reads: Sequence[FetchRead], of_session: TopicPartition | None
    ) -> list[Any]:
        """The partitions of a fetch, flat. Empty if the fetch reads none of the recorded topics."""
        topics = self._topics
        partitions: list[Any] = []
        batches_left = BATCHES_COUNTED_MAX
        for (tp, wanted), read in zip(entries, reads, strict=True):
            if read.size and read.data.records and (not topics or tp.topic in topics):
                records, size, is_estimated, batches = _count(read.data.records, batches_left)
                self.estimated += is_estimated
                batches_left = max(batches_left - batches, 1)
                partitions += (tp.topic, tp.partition, wanted.fetch_offset, records, size, read.data.high_watermark)
        if partitions:
            return partitions
        for (tp, wanted), read in zip(entries, reads, strict=True):
            if not topics or tp.topic in topics:
                return [tp.topic, tp.partition, wanted.fetch_offset, 0, 0, read.data.high_watermark]
        if of_session is not None and (not topics or of_session.topic in topics):
            return [of_session.topic, of_session.partition, -1, 0, 0, -1]
        return []

    def member(self, request: Request, group: str, topics: Collection[str] = ()) -> None:
        """A request of a member to the group's coordinator. `topics`: those that it names, if any."""
        named = tuple(sorted(topics)) if len(topics) <= TOPICS_OF_MEMBER_MAX else ()
        key = (
            self._hashed(request.header.client_id),
            request.connection.remote_address,
            group[:NAME_MAX],
            named,
        )
        if key in self._members:
            return
        if len(self._members) >= MEMBERS_REMEMBERED:
            self._members.clear()
        self._members.add(key)
        client, address, group, named = key
        self._append((MEMBER, request.received_at, client, address, group, *named), len(named), 0)

    def _hashed(self, name: str | None) -> str:
        """A client or transactional id as it is recorded."""
        if name is None:
            return ""
        name = name[:NAME_MAX]
        if not self._salt:
            return name
        hashed = self._hashes.get(name)
        if hashed is None:
            if len(self._hashes) >= MEMBERS_REMEMBERED:
                self._hashes.clear()
            digest = hmac.new(self._salt, name.encode(), hashlib.sha256).hexdigest()
            self._hashes[name] = hashed = digest[:HASHED_DIGITS]
        return hashed

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _append(self, entry: Entry, parts: int, rows: int) -> None:
        """`parts`: partitions or topics in the entry; `rows`: rows of the trace that it becomes."""
        self._block.append(entry)
        self._further_parts += parts - 1
        self._further_rows += rows - 1
        if len(self._block) + self._further_parts >= BLOCK_PARTITIONS:
            self._pack()

    def _pack(self) -> None:
        """Packs the block."""
        block = self._block
        if self._is_stopped or not block:
            self._block = []
            return
        frame = b"" if self._is_full else entries_frame(self.counts, block)
        if self._is_full or self._waiting_size + len(self._packed) + len(frame) > MEMORY_MAX:
            self._beyond_memory += len(block)
        else:
            self._packed += frame
            self._packed_requests += len(block)
            self._packed_rows += len(block) + self._further_rows
        self._block, self._further_parts, self._further_rows = [], 0, 0
        if len(self._packed) >= WRITE_SIZE:
            self._hand_over()

    def _hand_over(self) -> None:
        packed, requests, rows = bytes(self._packed), self._packed_requests, self._packed_rows
        if not packed:
            return
        self._packed.clear()
        self._packed_requests = self._packed_rows = 0
        size = len(packed)

        def written(fits: bool) -> None:
            self._waiting_size -= size
            if fits:
                self.requests += requests
                self.rows += rows
            else:
                self._beyond_file += requests
                self._is_full = True

        self._waiting_size += size
        self._write(packed, requests, written)

    def flush(self) -> None:
        """Hands over what is in memory."""
        self._pack()
        self._hand_over()

    def stop(self) -> None:
        """Hands over the rest. Requests that are answered later are not recorded."""
        self.flush()
        self._is_stopped = True


def _keys_size(partitions: Sequence[Any]) -> int:
    """Bytes of the hashes of keys in the partitions of a produce, which follow each other."""
    return sum(len(about[-1]) for about in partitions[OF_PRODUCED - 1 :: OF_PRODUCED] if isinstance(about, tuple))


def _batch(records: Buffer) -> tuple[int, int, int]:
    """(attributes, records, bytes) of a produced batch. One without a whole header cannot be appended, so it needs no numbers."""
    size = len(records)
    if size < HEADER_SIZE:
        return 0, 0, size
    attributes, count = _ATTRIBUTES_AND_COUNT.unpack_from(records, _ATTRIBUTES_OFFSET)
    return attributes, count, size


def _count(buffers: Sequence[Buffer], batches_max: int) -> tuple[int, int, bool, int]:
    """(records, bytes, whether both are estimated, batches) of the whole batches; the last one of an answer may be cut off."""
    records = size = batches = 0
    for buffer in buffers:
        at, end = 0, len(buffer)
        while end - at >= HEADER_SIZE:
            length, count = _LENGTH_AND_COUNT.unpack_from(buffer, at)
            at += length + LOG_OVERHEAD
            if at > end or length <= 0:
                break
            if batches == batches_max:
                everything = sum(map(len, buffers))
                return records * everything // max(size, 1), everything, True, batches
            records += count
            batches += 1
            size += length + LOG_OVERHEAD
    return records, size, False, batches
