"""Reads for a fetch, one partition after the other: for consumers up to the high watermark, or up to the last stable offset if they
want committed records only (`isolation.level`, KIP-98), and for followers up to the log end.

Consumers may also read from a follower, up to its own high watermark, which is never above the leader's (KIP-392).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.recording.recording import FetchObserver
from broker.replication.fetching.closest_replica import NO_REPLICA, ClosestReplica
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition, Role
from broker.settings.config import INT_MAX
from broker.storage.log import Log, WouldBlock
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import READ_COMMITTED, FetchPartitionData, FetchRequestPartition
from protocol.kafka.framing import Part
from protocol.kafka.single_fetch import READ_REPLICA_SINCE, SingleFetch
from protocol.kafka.wire import TopicKey
from protocol.types import NO_EPOCH, Buffer, TopicPartition

ERRORS_WITH_A_HINT: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

ROOM_OF_FOLLOWERS: Final = 64 * 1024
"""Bytes that an answer to a follower may always have, so that followers never wait for clients that do not read their answers."""


class AnswerRoom(Protocol):
    """The room for an answer: a connection has a limited number of bytes for unsent answers."""

    @property
    def is_open(self) -> bool: ...

    def answer_room(self) -> int:
        """The number of bytes that the answer may have now; 0: no records."""
        ...

    def reserve(self, size: int) -> None:
        """The fetch holds `size` bytes until it is answered."""
        ...

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the connection ends."""
        ...


class Unbounded:
    """Room for any answer."""

    is_open = True

    def answer_room(self) -> int:
        return INT_MAX

    def reserve(self, size: int) -> None:
        """Nothing to count."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """It never ends."""


UNBOUNDED: Final = Unbounded()
NO_ROOM: Final = -(2**62)
"""This `max_bytes` means no records, not even the first batch."""


Throttle = Callable[[int], int]
"""Counts an answer of so many bytes. Returns the throttle time in milliseconds."""


class FetchParams(NamedTuple):
    """The request's own fields. `replica_id` < 0: a consumer; `replica_epoch` is the follower's broker epoch.

    `observer` records the fetch when it is answered; None if nothing is recorded. `rack_id` is the consumer's rack, "" for none;
    None: the request's version is too old to read from a follower (KIP-392). `listener` is the one that the request came to.
    `may_be_stored`: if the fetch is answered in this turn of the loop, its records may be StoredBytes. `may_read` tells whether the client
    may read the topic of that name; only GuardedReads ask it. `throttle` is told the bytes of the answer; if it returns more than 0, the
    client is over its quota, and gets an empty answer. None: it has no quota.
    """

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    room: AnswerRoom = UNBOUNDED
    observer: FetchObserver | None = None
    rack_id: str | None = None
    listener: str = ""
    may_be_stored: bool = False
    may_read: Callable[[str], bool] | None = None
    throttle: Throttle | None = None

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def is_only_for_leader(self) -> bool:
        """Followers, and consumers that do not know KIP-392, read from the leader only."""
        return self.replica_id >= 0 or self.rack_id is None

    def bounded(self) -> FetchParams:
        """The same request, with `max_bytes` and `min_bytes` limited to the room that the answer has now."""
        room = self.room.answer_room()
        if room >= self.max_bytes:
            return self
        if self.replica_id >= 0 and room < ROOM_OF_FOLLOWERS:
            room = ROOM_OF_FOLLOWERS
        # An answer has whole batches only, so it can be smaller than its room. Half the room is therefore enough for an answer.
        return self._replace(max_bytes=min(self.max_bytes, room or NO_ROOM), min_bytes=min(self.min_bytes, room // 2))


FetchEntry = tuple[TopicPartition, FetchRequestPartition]
"""A partition to read, and its fields in the request."""


class PartitionRead(NamedTuple):
    """The result of a read, and the size of its records in bytes. `cold`: the records must still be read from disk, in a thread;
    `size` is then the requested size.

    `is_throttled`: the bytes count for the leader's replication throttle. `is_idle`: there was nothing to read, so the partition may
    rest in its session.
    """

    data: FetchPartitionData
    size: int = 0
    cold: ColdRead | None = None
    is_throttled: bool = False
    is_idle: bool = False

    def in_memory(self) -> PartitionRead:
        """The same with the records read. Raises KafkaError."""
        stored = self.data.stored
        return self if stored is None else self._replace(data=self.data._replace(records=(stored.read(),), stored=None))

    @property
    def throttled_size(self) -> int:
        return self.size if self.is_throttled else 0


class ColdRead(NamedTuple):
    """The arguments of a `Log.read` that would have blocked. They are valid while the partition has this `generation`."""

    partition: Partition
    generation: int
    log: Log
    offset: int
    max_bytes: int
    max_offset: int
    min_one_batch: bool
    with_aborted: bool


class FetchReads:
    """Reads partitions. Keeps no state between reads. `closest` is None if the leader names no closer replica."""

    def __init__(
        self,
        hosted: HostedPartitions,
        is_suspect: Callable[[], bool],
        throttle: ReplicationThrottle,
        closest: ClosestReplica | None = None,
    ) -> None:
        self._closest = closest
        self._throttle = throttle
        self._hosted = hosted
        self._is_suspect = is_suspect

    def find(self, key: TopicKey, partition: int) -> TopicPartition | None:
        """The partition of that topic name or id. None: the id is unknown."""
        return TopicPartition(key, partition) if isinstance(key, str) else self._hosted.resolve(key, partition)

    def read_all(self, params: FetchParams, entries: list[FetchEntry]) -> list[PartitionRead]:
        """Reads all partitions of a fetch for the first time. Also records a follower's fetch offsets (REP-1 step 4)."""
        reads: list[PartitionRead] = []
        total = throttled = 0
        for tp, wanted in entries:
            budget = params.max_bytes - total
            read = self.read(
                params,
                tp,
                wanted,
                budget,
                min_one_batch=total == 0 and params.max_bytes != NO_ROOM,
                records_fetch=True,
                pending=throttled,
            )
            total += read.size
            throttled += read.throttled_size
            reads.append(read)
        return reads

    def read(
        self,
        params: FetchParams,
        tp: TopicPartition,
        wanted: FetchRequestPartition,
        budget: int,
        *,
        min_one_batch: bool,
        records_fetch: bool = False,
        pending: int = 0,
    ) -> PartitionRead:
        """Reads at most `budget` bytes of one partition, but with `min_one_batch` always its whole first batch.

        `records_fetch`: also records the follower's fetch offset. `pending`: throttled bytes that are already in the same answer.
        """
        try:
            return self._read(params, tp, wanted, budget, min_one_batch, records_fetch, pending)
        except KafkaError as error:
            return self.failure(tp, wanted, error.code)

    def answer_single(
        self, single: SingleFetch, tp: TopicPartition, offset: int, correlation_id: int, listener: str
    ) -> tuple[Sequence[Part], int] | None:
        """The answer to a consumer's fetch of one partition, and the size of its records.

        None: there are not enough of them in memory, or the answer must have something else. `read` then finds what it is.
        """
        request, wanted, is_committed = single.request, single.wanted, single.is_committed
        epoch = wanted.current_leader_epoch
        try:
            partition = self._hosted.find(tp)
            may_follow = single.version >= READ_REPLICA_SINCE
            log = partition.replica_log(epoch) if may_follow else partition.leader_log(epoch)
            if self._closer(partition, offset, request.rack_id, listener) != NO_REPLICA:
                return None
            if partition.divergence(wanted.last_fetched_epoch, offset) is not None:
                return None
            high_watermark = partition.high_watermark  # read once, as in `_read`
            last_stable = log.last_stable_offset(high_watermark)
            limit = last_stable if is_committed else high_watermark
            found = log.read(offset, single.max_bytes, limit, True, is_committed, may_be_stored=True)
        except (KafkaError, WouldBlock):
            return None
        if not found.size or found.size < request.min_bytes or found.aborted:
            return None
        records = found.records if found.stored is None else (found.stored,)
        start = log.log_start_offset
        return single.answer(correlation_id, high_watermark, last_stable, start, records, found.size), found.size

    async def read_cold(self, tp: TopicPartition, wanted: FetchRequestPartition, read: PartitionRead) -> PartitionRead:
        """Finishes a read whose pages were not in memory. Checks the leadership again after it (BUG-12)."""
        cold = read.cold
        assert cold is not None
        try:
            result = await cold.log.read_cold(*cold[3:])
        except KafkaError as error:
            return self.failure(tp, wanted, error.code)
        is_cut = cold.partition.role is Role.FOLLOWER and cold.partition.high_watermark < cold.max_offset
        if cold.partition.generation != cold.generation or is_cut:
            return self.failure(tp, wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        data = read.data._replace(records=result.records)
        if cold.with_aborted:
            data = data._replace(aborted_transactions=result.aborted)
        return PartitionRead(data, result.size, is_throttled=read.is_throttled)

    def in_memory(self, entry: FetchEntry, read: PartitionRead) -> PartitionRead:
        """The read without StoredBytes, for an answer in a later turn of the loop."""
        try:
            return read.in_memory()
        except KafkaError as error:
            return self.failure(*entry, error.code)

    def failure(self, tp: TopicPartition, wanted: FetchRequestPartition, error: ErrorCode) -> PartitionRead:
        hint = self._hosted.leader_hint(tp) if error in ERRORS_WITH_A_HINT else None
        current_leader = (hint.leader, hint.leader_epoch) if hint is not None else None
        # As in Kafka: an empty list where the partition was not found, and none where its read failed.
        aborted = () if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
        data = FetchPartitionData(wanted.partition, error, current_leader=current_leader, aborted_transactions=aborted)
        return PartitionRead(data)

    def _read(
        self,
        params: FetchParams,
        tp: TopicPartition,
        wanted: FetchRequestPartition,
        budget: int,
        min_one_batch: bool,
        records_fetch: bool,
        pending: int,
    ) -> PartitionRead:
        partition = self._hosted.find(tp)
        epoch = wanted.current_leader_epoch
        log = partition.leader_log(epoch) if params.is_only_for_leader else partition.replica_log(epoch)
        is_trusted = not params.is_follower or self._check_follower(params, partition, wanted)
        offset = wanted.fetch_offset
        closer = NO_REPLICA if params.is_follower else self._closer(partition, offset, params.rack_id, params.listener)
        diverging = partition.divergence(wanted.last_fetched_epoch, offset) if closer == NO_REPLICA else None
        if closer != NO_REPLICA or diverging is not None:
            high_watermark = partition.high_watermark
            data = FetchPartitionData(
                wanted.partition,
                ErrorCode.NONE,
                high_watermark,
                log.last_stable_offset(high_watermark),
                log.log_start_offset,
                diverging_epoch=None if diverging is None else (diverging.epoch, diverging.end_offset),
                preferred_read_replica=closer,
            )
            return PartitionRead(data)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if params.is_follower and records_fetch and is_trusted:
            partition.record_follower_fetch(params.replica_id, params.replica_epoch, offset, wanted.log_start_offset)
        # Read once, for the limit and for the answer: two reads could differ (INV-15, BUG-19).
        high_watermark = partition.high_watermark
        last_stable = log.last_stable_offset(high_watermark)
        is_committed = params.isolation_level == READ_COMMITTED and not params.is_follower
        if is_committed:
            limit = last_stable
        else:
            limit = log.log_end_offset if params.is_follower and is_trusted else high_watermark
        max_bytes = min(wanted.partition_max_bytes, budget)
        records: Sequence[Buffer] = ()
        stored = None
        aborted: Sequence[tuple[int, int]] | None = () if is_committed else None
        size = 0
        cold = None
        is_throttled = False
        if offset < limit and (max_bytes > 0 or min_one_batch):
            is_throttled = params.is_follower and self._is_throttled(partition, log, params.replica_id)
            if is_throttled and self._throttle.is_exceeded(pending):
                is_throttled = False  # nothing is read, so nothing counts
            else:
                try:
                    found = log.read(
                        offset, max_bytes, limit, min_one_batch, is_committed, may_be_stored=params.may_be_stored
                    )
                    records, size, stored = found.records, found.size, found.stored
                    aborted = found.aborted or aborted
                except WouldBlock:
                    generation = partition.generation
                    cold = ColdRead(partition, generation, log, offset, max_bytes, limit, min_one_batch, is_committed)
                    size = max(max_bytes, 1)
        data = FetchPartitionData(
            wanted.partition,
            ErrorCode.NONE,
            high_watermark,
            last_stable,
            log.log_start_offset,
            records,
            aborted_transactions=aborted,
            stored=stored,
        )
        return PartitionRead(data, size, cold, is_throttled, offset >= limit and is_trusted)

    def _closer(self, partition: Partition, offset: int, rack: str | None, listener: str) -> int:
        """The replica that a consumer in that rack should read from, NO_REPLICA for this one (KIP-392)."""
        if self._closest is None or not rack or partition.role is not Role.LEADER:
            return NO_REPLICA
        return self._closest.of(partition, offset, rack, listener)

    def _is_throttled(self, partition: Partition, log: Log, replica: int) -> bool:
        """KIP-73: a replica in sync is never throttled, because producers wait for it."""
        return self._throttle.applies_to(log.config, partition.tp.partition) and replica not in partition.isr

    def _check_follower(self, params: FetchParams, partition: Partition, wanted: FetchRequestPartition) -> bool:
        """`Partition.check_follower`, after checks of the lease and the epoch. Raises KafkaError."""
        if self._is_suspect():
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if wanted.current_leader_epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        return partition.check_follower(params.replica_id, params.replica_epoch)


class GuardedReads(FetchReads):
    """Reads for a broker with an authorizer. Each read of a partition asks whether the client may read its topic.

    So a right that was taken away counts also for partitions of a session, and for a fetch that is parked.
    """

    def read(
        self,
        params: FetchParams,
        tp: TopicPartition,
        wanted: FetchRequestPartition,
        budget: int,
        *,
        min_one_batch: bool,
        records_fetch: bool = False,
        pending: int = 0,
    ) -> PartitionRead:
        if params.may_read is not None and not params.may_read(tp.topic):
            return self.failure(tp, wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return super().read(
            params,
            tp,
            wanted,
            budget,
            min_one_batch=min_one_batch,
            records_fetch=records_fetch,
            pending=pending,
        )
