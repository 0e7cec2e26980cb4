"""Sends the markers of decided transactions to the leaders of their partitions, until each partition has its marker
(WriteTxnMarkers, Kafka's `TransactionMarkerChannelManager`).

    decided -> queue of the leader -> request -> NONE: marked
                 ^                          |
                 +---- waiting <------------+ any other outcome

A marker waits while its partition has no live leader, and after a failure. Each change of the metadata, and a timer, looks for the
leaders again (`_leader_of`). A marker may so be written twice; the second one ends nothing.

Whoever dies: the decision is in the log, so the next coordinator sends all markers again, in its higher epoch. A partition that has seen
that epoch answers TRANSACTION_COORDINATOR_FENCED to the earlier coordinator, which then stops: it would end a later transaction.
INVALID_PRODUCER_EPOCH means that the partition has a later epoch of the producer. That is given out only after the transaction has ended,
so the marker is there.

A marker of transaction version 2 has the raised epoch, which is also that of the producer's next transaction. The request says so (v2,
KIP-1228): if such a marker comes late, the partition refuses to end the next transaction with it.

A partition that is gone gets no marker: its topic does not exist, is to be deleted, or was made again with fewer partitions. ZooKeeper
says so (`assigned_partitions`). The metadata alone is no proof: that of a broker that has just started may not be complete.
If the topic was made again with such a partition, the marker is written to the new log, as in Kafka, whose transactions know topics
by name: batches of the transaction may be there, too. In a log without such batches the marker takes one offset and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from broker.cluster.metadata_cache import MetadataCache
from broker.purgatory import TimerHandle, Timers
from broker.transactions.held_transactions import HeldTransaction
from broker.transactions.peers import BrokerQueues, PeerRequests, PeerUnavailable
from broker.transactions.states import PREPARED, TransactionState, TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.types import NO_LEADER, TopicPartition

log = logging.getLogger(__name__)

VERSION = 1
EPOCH_RAISED_VERSION = 2
"""Of requests with a marker of transaction version 2. It is sent only then: brokers of earlier versions of ottla do not know it."""
PARTITIONS_AT_ONCE = 1_000
"""Partitions in one request. Its answer is read in one turn of the loop."""
RETRY_S = 0.2
"""How often markers that wait look for their leaders."""

TOPICS_AT_ONCE = 20
"""Topics that are looked up in ZooKeeper together. Their nodes are decoded in one turn of the loop."""
GONE = -2
"""In the place of a leader: the partition does not exist."""

AssignedPartitions = Callable[[Collection[str]], Awaitable[Mapping[str, Collection[int]]]]
"""Topic -> its partitions, none if it is deleted or to be deleted. A topic is missing if that is unknown."""
NOTHING_KNOWN: Mapping[str, Collection[int]] = {}

Item = TypeVar("Item")


class Markers(NamedTuple):
    """Markers of one transaction, for some of its partitions."""

    held: HeldTransaction
    producer: ProducerIdAndEpoch
    is_commit: bool
    version: TransactionVersion
    partitions: frozenset[TopicPartition]

    @property
    def is_current(self) -> bool:
        """False: this broker no longer coordinates the id, or that transaction is complete."""
        transaction = self.held.transaction
        return (
            self.held.is_held
            and transaction.state in PREPARED
            and transaction.current.producer == self.producer
            and not self.partitions.isdisjoint(transaction.unmarked)
        )

    def of(self, partitions: Iterable[TopicPartition]) -> Markers:
        return self._replace(partitions=frozenset(partitions))


class MarkerSender:
    """Calls `all_marked(held)` when the last partition of a transaction has its marker; at once if it has no partitions."""

    def __init__(
        self,
        metadata: MetadataCache,
        peers: PeerRequests,
        timers: Timers,
        assigned_partitions: AssignedPartitions,
        all_marked: Callable[[HeldTransaction], None],
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._timers = timers
        self._assigned_partitions = assigned_partitions
        self._all_marked = all_marked
        self._queues = BrokerQueues[Markers](self._send)
        self._waiting: list[Markers] = []
        self._timer: TimerHandle | None = None
        self._is_looking = False
        self._looking_up: asyncio.Task[None] | None = None
        self._is_closed = False
        self._forget_listener = metadata.on_change(self._metadata_changed)

    @property
    def waiting(self) -> int:
        """Markers that wait for a leader or a retry, counted by transaction and broker."""
        return len(self._waiting)

    def send(self, held: HeldTransaction) -> None:
        """Sends the markers that the transaction, which is in a prepared state, still needs."""
        transaction = held.transaction
        assert transaction.state in PREPARED
        is_commit = transaction.state is TransactionState.PREPARE_COMMIT
        producer = transaction.current.producer
        if transaction.unmarked:
            version = transaction.current.client_version
            self._route(Markers(held, producer, is_commit, version, frozenset(transaction.unmarked)))
        else:
            self._all_marked(held)

    async def close(self) -> None:
        self._is_closed = True
        self._forget_listener()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking_up is not None:
            self._looking_up.cancel()
            await asyncio.gather(self._looking_up, return_exceptions=True)
        await self._queues.close()
        self._peers.close()

    # -- where to -----------------------------------------------------------------------------------------------------

    def _leader_of(self, tp: TopicPartition, assigned: Mapping[str, Collection[int]]) -> int:
        """The broker that leads the partition; NO_LEADER: none yet; GONE, by what `assigned` says of its topic."""
        state = self._metadata.partition(tp)
        if state is not None:
            return state.leader if self._metadata.broker(state.leader) is not None else NO_LEADER
        return GONE if tp.partition not in assigned.get(tp.topic, (tp.partition,)) else NO_LEADER

    def _route(self, markers: Markers, assigned: Mapping[str, Collection[int]] = NOTHING_KNOWN) -> None:
        """Puts the markers into the queues of the leaders. Those without a leader wait; those of partitions that are gone are done."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in markers.partitions:
            by_leader.setdefault(self._leader_of(tp, assigned), []).append(tp)
        gone = by_leader.pop(GONE, ())
        if homeless := by_leader.pop(NO_LEADER, ()):
            self._wait(markers.of(homeless))
        for leader, partitions in by_leader.items():
            for part in _parts(partitions, PARTITIONS_AT_ONCE):
                self._queues.add(leader, markers.of(part))
        if gone:
            transactional_id = markers.held.transactional_id
            log.info("transactional id %.200s: %s and %d more are gone", transactional_id, gone[0], len(gone) - 1)
            self._marked(markers, gone)

    def _wait(self, markers: Markers) -> None:
        if self._is_closed:
            return
        self._waiting.append(markers)
        if self._timer is None:
            self._timer = self._timers.call_later(RETRY_S, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._look_again()
        if self._waiting and (self._looking_up is None or self._looking_up.done()):
            self._looking_up = asyncio.get_running_loop().create_task(self._look_up())

    def _metadata_changed(self, changed: list[TopicPartition]) -> None:
        if self._waiting and not self._is_looking:
            self._is_looking = True
            self._timers.call_soon(self._look_again)

    def _look_again(self, assigned: Mapping[str, Collection[int]] = NOTHING_KNOWN) -> None:
        self._is_looking = False
        waiting, self._waiting = self._waiting, []
        for markers in waiting:
            if markers.is_current:
                self._route(markers, assigned)

    async def _look_up(self) -> None:
        """Looks in ZooKeeper for the partitions that the metadata does not have. The metadata may have them when it answers."""
        unknown = {
            tp.topic for markers in self._waiting for tp in markers.partitions if self._metadata.partition(tp) is None
        }
        assigned: dict[str, Collection[int]] = {}
        for topics in _parts(sorted(unknown), TOPICS_AT_ONCE):
            assigned.update(await self._assigned_partitions(topics))
        if assigned:
            self._look_again(assigned)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _send(self, broker_id: int, queue: deque[Markers]) -> None:
        batch: list[Markers] = []
        count = 0
        while queue and (not batch or count + len(queue[0].partitions) <= PARTITIONS_AT_ONCE):
            markers = queue.popleft()
            if markers.is_current:
                batch.append(markers)
                count += len(markers.partitions)
        if not batch:
            return
        is_epoch_raised = any(markers.version.raises_epoch for markers in batch)
        try:
            answer = await self._peers.ask(
                broker_id,
                ApiKey.WRITE_TXN_MARKERS,
                EPOCH_RAISED_VERSION if is_epoch_raised else VERSION,
                {"markers": [_row(markers) for markers in batch]},
            )
            errors = _errors_of(answer)
        except PeerUnavailable as error:
            log.info("markers of %d transactions are sent again: %s", len(batch), error)
            errors = {}
        except Exception:
            # A bug must not stop the queue: these transactions would never end.
            log.exception("markers of %d transactions could not be sent to broker %d", len(batch), broker_id)
            errors = {}
        for markers in batch:
            self._answered(broker_id, markers, errors.get(markers.producer.producer_id, {}))

    def _answered(self, broker_id: int, markers: Markers, errors: dict[TopicPartition, int]) -> None:
        """A partition without an answer is tried again."""
        if not markers.is_current:
            return
        done, again = [], []
        for tp in markers.partitions:
            code = errors.get(tp)
            if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
                done.append(tp)
            elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                # The successor sends these markers.
                log.warning(
                    "transactional id %.200s, %s: broker %d knows a later coordinator than epoch %d",
                    markers.held.transactional_id,
                    tp,
                    broker_id,
                    markers.held.owner.leader_epoch,
                )
                return
            else:
                again.append(tp)
            if code not in (None, ErrorCode.NONE):
                log.info("%s: broker %d answered a marker with %s", tp, broker_id, error_name(code))
        if again:
            self._wait(markers.of(again))
        self._marked(markers, done)

    def _marked(self, markers: Markers, partitions: Sequence[TopicPartition]) -> None:
        transaction = markers.held.transaction
        if partitions and transaction.unmarked:
            transaction.marked(partitions)
            if not transaction.unmarked:
                self._all_marked(markers.held)


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _row(markers: Markers) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(markers.partitions):
        topics.setdefault(topic, []).append(partition)
    return {
        "producer_id": markers.producer.producer_id,
        "producer_epoch": markers.producer.epoch,
        "transaction_result": markers.is_commit,
        "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()],
        "coordinator_epoch": markers.held.owner.leader_epoch,
        "transaction_version": int(markers.version),
    }


def _errors_of(answer: Any) -> dict[int, dict[TopicPartition, int]]:
    """Producer id -> partition -> error code."""
    errors: dict[int, dict[TopicPartition, int]] = {}
    for marker in answer.markers:
        of_producer = errors.setdefault(int(marker.producer_id), {})
        for topic in marker.topics:
            for row in topic.partitions:
                of_producer[TopicPartition(str(topic.name), int(row.partition_index))] = int(row.error_code)
    return errors
