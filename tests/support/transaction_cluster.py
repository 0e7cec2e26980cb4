"""Transaction coordinators over replica managers in one process: no sockets, no ZooKeeper, time moved by hand.

The topic `__transaction_state` has one partition, so its leader coordinates every id. Markers and verifications go to fake brokers, which
keep them; partitions of topic `t` are led as `leaders` says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.transactions.coordinator import ProducerAnswer, TransactionCoordinator
from broker.transactions.peers import PeerUnavailable
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import LEADER_DURING_DELETE, TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.replica_cluster import Cluster, Node

STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
ID = "tx"
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
TIMEOUT_MS = 60_000

Marker = tuple[int, str, int, int, bool, int]
"""broker, partition, producer id, producer epoch, whether it commits, coordinator epoch"""


class FakeProducerIds:
    """0, 1, 2 for each broker, after `base`."""

    def __init__(self, base: int) -> None:
        self._numbers = itertools.count(base)

    async def next_id(self) -> int:
        await asyncio.sleep(0)
        return next(self._numbers)


class FakePeers:
    """The other brokers, as one broker reaches them. Requests and answers pass through kio, as over the network."""

    def __init__(self, cluster: TransactionCluster, own_id: int) -> None:
        self._cluster = cluster
        self._own_id = own_id

    async def ask(self, broker_id: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        messages.encode_request(api_key, version, 1, "test", body)
        await asyncio.sleep(0)
        if broker_id in self._cluster.unreachable or self._own_id not in self._cluster.nodes:
            raise PeerUnavailable("unreachable")
        assert api_key == ApiKey.WRITE_TXN_MARKERS
        answer = {"markers": [self._write(broker_id, marker) for marker in body["markers"]]}
        encoded = b"\0\0\0\1\0" + messages.encode_response(api_key, version, answer)
        return messages.decode_response(api_key, version, encoded)[1]

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, broker_id: int, marker: Mapping[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in marker["topics"]:
            rows = []
            for number in topic["partition_indexes"]:
                tp = TopicPartition(topic["name"], number)
                error = self._cluster.marker_error(broker_id, tp)
                if error is ErrorCode.NONE:
                    self._cluster.markers.append(
                        (
                            broker_id,
                            str(tp),
                            marker["producer_id"],
                            marker["producer_epoch"],
                            marker["transaction_result"],
                            marker["coordinator_epoch"],
                        )
                    )
                rows.append({"partition_index": number, "error_code": int(error)})
            topics.append({"name": topic["name"], "partitions": rows})
        return {"producer_id": marker["producer_id"], "topics": topics}


class NoPeers:
    """No other broker answers."""

    async def ask(self, broker_id: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        raise PeerUnavailable("nobody is there")

    def close(self) -> None:
        """Nothing is open."""


async def nothing_assigned(topics: Collection[str]) -> Mapping[str, Collection[int]]:
    """ZooKeeper does not answer."""
    return {}


def coordinator_of(node: Node, time: FakeTime) -> TransactionCoordinator:
    """A coordinator on the broker, for tests of other things: it coordinates nothing yet."""
    config = BrokerConfig(broker_id=node.id)
    events = EventLog(None, time)
    ids = FakeProducerIds(0)
    return TransactionCoordinator(
        config, time, time, node.metadata, node.manager, node.lease, events, ids, NoPeers(), nothing_assigned
    )


@dataclass
class TransactionCluster(Cluster):
    """`markers` are those that were written; `marker_error` answers for a broker and a partition.

    `assigned`: the partitions of each topic in ZooKeeper; other topics cannot be read. `version`: the feature `transaction.version`.
    """

    tp: TopicPartition = STATE
    coordinators: dict[int, TransactionCoordinator] = field(default_factory=dict)
    leaders: dict[TopicPartition, int] = field(default_factory=lambda: {T0: 1, T1: 2, T2: 3})
    markers: list[Marker] = field(default_factory=list)
    marker_error: Callable[[int, TopicPartition], ErrorCode] = lambda broker, tp: ErrorCode.NONE
    unreachable: set[int] = field(default_factory=set)
    assigned: dict[str, Collection[int]] = field(default_factory=dict)
    version: TransactionVersion = TransactionVersion.TV_0

    async def start_broker(self, broker: int, *, wipe: bool = False) -> Node:
        node = await super().start_broker(broker, wipe=wipe)
        coordinator = self.coordinators[broker] = TransactionCoordinator(
            BrokerConfig(broker_id=broker, **self.settings),
            self.time,
            self.time,
            node.metadata,
            node.manager,
            node.lease,
            EventLog(None, self.time),
            FakeProducerIds(1000 * broker),
            FakePeers(self, broker),
            self._assigned_partitions,
            lambda: self.version,
        )
        coordinator.start()
        return node

    async def _assigned_partitions(self, topics: Collection[str]) -> Mapping[str, Collection[int]]:
        return {topic: self.assigned[topic] for topic in topics if topic in self.assigned}

    def leadership_changed(self, broker: int, tp: TopicPartition) -> None:
        if broker in self.coordinators:
            self.coordinators[broker].leadership_changed(tp)

    def pass_time(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.25))):
            super().pass_time(seconds / max(1, round(seconds / 0.25)))
            for node in self.nodes.values():
                node.lease.prove(self.time.since_boot())

    def kill(self, broker: int) -> None:
        del self.coordinators[broker]
        super().kill(broker)

    def tell_metadata(self) -> None:
        states = [
            PartitionState(tp.topic, tp.partition, 1, leader, 0, (1,), 0, (1,)) for tp, leader in self.leaders.items()
        ]
        states.append(PartitionState(*STATE, 1, 1, 0, (1,), 0, (1,)))
        self._tell(states)

    def delete(self, *partitions: TopicPartition) -> None:
        """Removes the partitions from the metadata."""
        for tp in partitions:
            del self.leaders[tp]
        self._tell([PartitionState(*tp, 1, LEADER_DURING_DELETE, 0, (), 0, ()) for tp in partitions])

    def _tell(self, states: list[PartitionState]) -> None:
        for node in self.nodes.values():
            request = UpdateMetadataRequest(9, self.controller_epoch, node.epoch, tuple(states), {}, self.brokers())
            node.carry_out(request)

    async def serve(self, leader: int, epoch: int, isr: tuple[int, ...], **more: Any) -> None:
        """The controller makes `leader` the coordinator; returns when it serves."""
        self.lead(leader, epoch, isr, replicas=isr, is_new=epoch == 0, **more)
        await self.until(lambda: self.coordinators[leader].check(ID) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert self.coordinators[leader].check(ID) is ErrorCode.NONE

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Replicates, and lets tasks and timers continue."""
        for _ in range(30):
            if is_so():
                return
            for _ in range(10):
                await asyncio.sleep(0)
            await self.settle()
        assert is_so()

    async def go_on(self) -> None:
        """Runs until everything that can happen by itself has happened."""
        for _ in range(4):
            for _ in range(10):
                await asyncio.sleep(0)
            await self.settle()

    # -- producers ----------------------------------------------------------------------------------------------------

    def begin_init(
        self, broker: int, expected: ProducerIdAndEpoch | None = None, *, timeout_ms: int = TIMEOUT_MS
    ) -> list[ProducerAnswer]:
        answers: list[ProducerAnswer] = []
        asking = self.coordinators[broker].init_producer_id(ID, timeout_ms, expected, answers.append)
        self.asking = asyncio.get_running_loop().create_task(asking)
        return answers

    async def init(
        self, broker: int, expected: ProducerIdAndEpoch | None = None, *, timeout_ms: int = TIMEOUT_MS
    ) -> ProducerAnswer:
        answers = self.begin_init(broker, expected, timeout_ms=timeout_ms)
        await self.until(lambda: bool(answers))
        return answers[0]

    async def new_producer(self, broker: int, **more: Any) -> ProducerIdAndEpoch:
        answer = await self.init(broker, **more)
        assert answer.error is ErrorCode.NONE, answer
        return answer.producer

    def begin_add(self, broker: int, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> list[ErrorCode]:
        """In transaction version 2, if the cluster has it: as a broker adds them."""
        answers: list[ErrorCode] = []
        self.coordinators[broker].add_partitions(ID, producer, partitions, answers.append, self.version)
        return answers

    async def add(self, broker: int, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> ErrorCode:
        answers = self.begin_add(broker, producer, *partitions)
        await self.until(lambda: bool(answers))
        return answers[0]

    def begin_end(self, broker: int, producer: ProducerIdAndEpoch, *, is_commit: bool = True) -> list[ErrorCode]:
        answers: list[ErrorCode] = []
        self.coordinators[broker].end(ID, producer, is_commit, answers.append)
        return answers

    async def end(self, broker: int, producer: ProducerIdAndEpoch, *, is_commit: bool = True) -> ErrorCode:
        answers = self.begin_end(broker, producer, is_commit=is_commit)
        await self.until(lambda: bool(answers))
        return answers[0]

    def begin_end_and_raise(
        self, broker: int, producer: ProducerIdAndEpoch, *, is_commit: bool = True
    ) -> list[ProducerAnswer]:
        """EndTxn v5."""
        answers: list[ProducerAnswer] = []
        rest = self.coordinators[broker].end_and_raise(ID, producer, is_commit, answers.append)
        if rest is not None:
            self.asking = asyncio.get_running_loop().create_task(rest)
        return answers

    async def end_and_raise(
        self, broker: int, producer: ProducerIdAndEpoch, *, is_commit: bool = True
    ) -> ProducerAnswer:
        answers = self.begin_end_and_raise(broker, producer, is_commit=is_commit)
        await self.until(lambda: bool(answers))
        return answers[0]

    def state(self, broker: int) -> str:
        described = self.coordinators[broker].describe(ID)
        return described.metadata.state.value if described.metadata is not None else described.error.name
