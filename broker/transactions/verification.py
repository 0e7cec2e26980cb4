"""Asks the transaction coordinator whether partitions are in a producer's ongoing transaction (KIP-890, `AddPartitionsToTxnManager`).

The leader of a partition asks before it appends the first batch of a transaction. Otherwise a batch that arrives late, after the
transaction has ended, would begin a transaction that nobody ends, and stop every read_committed consumer of the partition.

For a producer of transaction version 2, which adds no partitions itself, the partition is added by the same request (`add`).

If this broker is the coordinator, it asks itself. Otherwise it sends AddPartitionsToTxn, with verify_only unless it adds; questions that
arrive while a request is in flight go with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from broker.cluster.metadata_cache import MetadataCache
from broker.coordination.confirmation import Certainty
from broker.transactions.peers import BrokerQueues, PeerRequests, PeerUnavailable
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

VERSION = 5
"""The first version whose errors include TRANSACTION_ABORTABLE."""
QUESTIONS_AT_ONCE = 200
ADD_AGAIN_S = 0.02
ADD_ATTEMPTS = 4
"""Partitions are added again after these errors, for about as long as by Kafka's `add.partitions.to.txn.retry.backoff.ms` and `.max.ms`."""
ADDED_AGAIN_AFTER = frozenset((ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
"""The last transaction is not complete; the coordinator has not heard yet of a new partition."""

Answers = dict[TopicPartition, ErrorCode]


class LocalCoordinator(Protocol):
    """The coordinator in this process."""

    def partition_of(self, transactional_id: str) -> int: ...

    @property
    def ownership(self) -> Certainty: ...

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> Answers: ...

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        respond: Callable[[ErrorCode], None],
        version: TransactionVersion,
    ) -> None: ...


class _Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    adds: bool
    answer: asyncio.Future[Answers]

    def row(self) -> dict[str, Any]:
        topics: dict[str, list[int]] = {}
        for topic, partition in self.partitions:
            topics.setdefault(topic, []).append(partition)
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.epoch,
            "verify_only": not self.adds,
            "topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        }

    def settle_all(self, error: ErrorCode) -> None:
        self.settle(dict.fromkeys(self.partitions, error))

    def settle(self, answers: Mapping[TopicPartition, ErrorCode]) -> None:
        """A partition without an answer gets UNKNOWN_SERVER_ERROR."""
        if not self.answer.done():
            unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            self.answer.set_result({tp: _for_producer(answers.get(tp, unknown)) for tp in self.partitions})


class CoordinatorVerifier:
    """The TransactionVerifier of the appends."""

    def __init__(
        self, own_id: int, metadata: MetadataCache, coordinator: LocalCoordinator, peers: PeerRequests
    ) -> None:
        self._own_id = own_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._peers = peers
        self._queues = BrokerQueues[_Question](self._send)
        self._asked: set[_Question] = set()
        self._is_closed = False

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """An error for each partition; NONE: it is in the ongoing transaction of this producer in this epoch.

        TRANSACTION_ABORTABLE: it is not. A caller whose client does not know this error answers INVALID_TXN_STATE. NETWORK_EXCEPTION,
        COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT_TRANSACTIONS: unknown, may be asked again.
        INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING: the producer is fenced, or unknown.
        """
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        return await self._ask(transactional_id, producer, partitions, adds=False)

    async def add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """As `verify`; NONE: the partition is in the transaction now. It never answers TRANSACTION_ABORTABLE."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        for _ in range(ADD_ATTEMPTS - 1):
            answers = await self._ask(transactional_id, producer, partitions, adds=True)
            if self._is_closed or ADDED_AGAIN_AFTER.isdisjoint(answers.values()):
                return answers
            await asyncio.sleep(ADD_AGAIN_S)
        return await self._ask(transactional_id, producer, partitions, adds=True)

    async def _ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, self._coordinator.partition_of(transactional_id))
        state = self._metadata.partition(tp)
        if self._is_closed or state is None or self._metadata.broker(state.leader) is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if state.leader == self._own_id and not self._coordinator.ownership.is_certain():
            await self._coordinator.ownership.confirm()
        if state.leader == self._own_id and not adds:
            answers = self._coordinator.verify(transactional_id, producer, partitions)
            return {tp: _for_producer(error) for tp, error in answers.items()}
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        question = _Question(transactional_id, producer, tuple(partitions), adds, answer)
        self._asked.add(question)
        if state.leader == self._own_id:
            version = TransactionVersion.TV_2
            self._coordinator.add_partitions(
                transactional_id, producer, question.partitions, question.settle_all, version
            )
        else:
            self._queues.add(state.leader, question)
        try:
            return await answer
        finally:
            self._asked.discard(question)

    async def close(self) -> None:
        """Open questions get COORDINATOR_NOT_AVAILABLE."""
        self._is_closed = True
        await self._queues.close()
        self._peers.close()
        for question in list(self._asked):
            question.settle_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _send(self, broker_id: int, queue: deque[_Question]) -> None:
        """A request names each transactional id once: a further question about an id waits for the next request."""
        batch: dict[str, _Question] = {}
        while queue and len(batch) < QUESTIONS_AT_ONCE and queue[0].transactional_id not in batch:
            question = queue.popleft()
            batch[question.transactional_id] = question
        try:
            answer = await self._peers.ask(
                broker_id,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                VERSION,
                {"transactions": [question.row() for question in batch.values()]},
            )
            self._settle(batch, answer)
        except PeerUnavailable as error:
            log.info("%d transactions could not be verified: %s", len(batch), error)
            _refuse_all(batch, ErrorCode.NETWORK_EXCEPTION)
        except Exception:
            # A bug must not leave producers without an answer.
            log.exception("%d transactions could not be verified by broker %d", len(batch), broker_id)
            _refuse_all(batch, ErrorCode.UNKNOWN_SERVER_ERROR)

    @staticmethod
    def _settle(batch: Mapping[str, _Question], answer: Any) -> None:
        whole = ErrorCode(answer.error_code)
        if whole is not ErrorCode.NONE:
            # Producers must not see an error between brokers.
            is_refused = whole is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            _refuse_all(batch, ErrorCode.INVALID_TXN_STATE if is_refused else whole)
            return
        for result in answer.results_by_transaction:
            question = batch.get(str(result.transactional_id))
            if question is not None:
                question.settle(
                    {
                        TopicPartition(str(topic.name), int(row.partition_index)): ErrorCode(row.partition_error_code)
                        for topic in result.topic_results
                        for row in topic.results_by_partition
                    }
                )
        _refuse_all(batch, ErrorCode.UNKNOWN_SERVER_ERROR)  # those without a result


def _refuse_all(batch: Mapping[str, _Question], error: ErrorCode) -> None:
    """Those that are not answered yet."""
    for question in batch.values():
        question.settle_all(error)


def _for_producer(error: ErrorCode) -> ErrorCode:
    """As in Kafka: producers expect INVALID_PRODUCER_EPOCH from Produce and TxnOffsetCommit."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
