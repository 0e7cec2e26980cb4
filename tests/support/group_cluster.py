"""Group coordinators over replica managers in one process: no sockets, no ZooKeeper, time moved by hand.

The topic `__consumer_offsets` has one partition, so every group is its leader's; groups commit in topic `t`, partitions 0 to 9.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.groups.consumer_group.assignors.problem import NOTHING
from broker.groups.consumer_group.member import JOINING
from broker.groups.consumer_group.messages import ConsumerHeartbeat, HeartbeatAnswer
from broker.groups.coordinator import GroupCoordinator
from broker.groups.group.messages import (
    CommittedOffset,
    GroupListing,
    JoinAnswer,
    JoinRequest,
    Protocol,
    SyncAnswer,
    SyncRequest,
    TransactionalProducer,
)
from broker.process.event_log import EventLog
from broker.settings.config import BrokerConfig
from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.rpc.messages import ControlResponse, PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import LEADER_DURING_DELETE, TopicPartition
from tests.support.replica_cluster import Cluster, Node

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
READ = TopicPartition("t", 0)
GROUP = "g"
SESSION_MS = 10_000

Answers = list[Any]
"""Gets what is answered, at the time."""


@dataclass
class GroupCluster(Cluster):
    """`coordinators` of the brokers that live."""

    tp: TopicPartition = OFFSETS
    coordinators: dict[int, GroupCoordinator] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=lambda: {OFFSETS_TOPIC: 1, "t": 10})
    """Topic -> its id, as a number."""
    cut_off: set[int] = field(default_factory=set)

    async def start_broker(self, broker: int, *, wipe: bool = False) -> Node:
        node = await super().start_broker(broker, wipe=wipe)
        config = BrokerConfig(broker_id=broker, **self.settings)
        coordinator = self.coordinators[broker] = GroupCoordinator(
            config, self.time, self.time, node.metadata, node.manager, node.lease, EventLog(None, self.time)
        )
        node.metadata.on_deletion(coordinator.topics_deleted)
        coordinator.start()
        return node

    def leadership_changed(self, broker: int, tp: TopicPartition) -> None:
        if broker in self.coordinators:
            self.coordinators[broker].leadership_changed(tp)

    def pass_time(self, seconds: float) -> None:
        """While ZooKeeper is there for all but the `cut_off`."""
        for _ in range(max(1, round(seconds / 0.25))):
            super().pass_time(seconds / max(1, round(seconds / 0.25)))
            for broker, node in self.nodes.items():
                if broker not in self.cut_off:
                    node.lease.prove(self.time.since_boot())

    def kill(self, broker: int) -> None:
        del self.coordinators[broker]
        super().kill(broker)

    def tell_metadata(self, *, is_full: bool = False) -> None:
        states = [
            PartitionState(topic, number, 1, 1, 0, (1,), 0, (1,))
            for topic in self.topics
            for number in range(1 if topic == OFFSETS_TOPIC else 10)
        ]
        self._tell(
            states, {topic: topic_id_text(uuid.UUID(int=number)) for topic, number in self.topics.items()}, is_full
        )

    def delete_topic(self, topic: str) -> None:
        del self.topics[topic]
        self._tell([PartitionState(topic, n, 1, LEADER_DURING_DELETE, 0, (), 0, ()) for n in range(10)], {})

    def _tell(self, states: list[PartitionState], topic_ids: Mapping[str, str], is_full: bool = False) -> None:
        for node in self.nodes.values():
            request = UpdateMetadataRequest(
                9, self.controller_epoch, node.epoch, tuple(states), topic_ids, self.brokers(), is_full
            )
            node.carry_out(request)

    def lead_groups(self, leader: int, epoch: int, isr: tuple[int, ...], **more: Any) -> dict[int, ControlResponse]:
        """The controller makes `leader` the coordinator; the ISR's members are the replicas."""
        return self.lead(leader, epoch, isr, replicas=more.pop("replicas", isr), is_new=epoch == 0, **more)

    async def start_serving(self, *brokers: int, **more: Any) -> None:
        """The brokers start; the first one becomes the coordinator, and all are in the ISR."""
        await self.start(*brokers)
        await self.serve(brokers[0], 0, brokers, **more)

    async def serve(self, leader: int, epoch: int, isr: tuple[int, ...], **more: Any) -> None:
        """As `lead_groups`; returns when the groups are served."""
        self.lead_groups(leader, epoch, isr, **more)
        await self.until_loaded(leader)

    async def until_loaded(self, leader: int) -> None:
        for _ in range(50):
            if self.coordinators[leader].check(GROUP) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await turns()
            await self.settle()
        assert self.coordinators[leader].check(GROUP) is ErrorCode.NONE

    # -- clients ------------------------------------------------------------------------------------------------------

    def join(self, broker: int, member_id: str = "", group: str = GROUP, **fields: Any) -> list[JoinAnswer]:
        """`new_member_id` is the id that a new member gets."""
        given: dict[str, Any] = {
            "new_member_id": "m",
            "instance_id": None,
            "client_id": "c",
            "client_host": "h",
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),),
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 20_000,
            "needs_member_id": False,
        }
        answers: list[JoinAnswer] = []
        self.coordinators[broker].join(JoinRequest(group, member_id, **{**given, **fields}), answers.append)
        return answers

    def consumer_heartbeat(self, broker: int, member_id: str, epoch: int, **fields: Any) -> list[HeartbeatAnswer]:
        """Of a member of a group of the new kind, which subscribes to `t` when it joins."""
        if epoch == JOINING:
            joining = {"rebalance_timeout_ms": 20_000, "topics": frozenset({"t"}), "owned": NOTHING}
            fields = {**joining, **fields}
        request = ConsumerHeartbeat(member_id, epoch, **{"client_id": "c", "client_host": "h", **fields})
        answers: list[HeartbeatAnswer] = []
        self.coordinators[broker].consumer_heartbeat(GROUP, request, answers.append)
        return answers

    def sync(
        self, broker: int, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None
    ) -> list[SyncAnswer]:
        answers: list[SyncAnswer] = []
        request = SyncRequest(GROUP, member_id, None, generation, assignments or {})
        self.coordinators[broker].sync(request, answers.append)
        return answers

    def heartbeat(self, broker: int, member_id: str, generation: int, group: str = GROUP) -> ErrorCode:
        return self.coordinators[broker].heartbeat(group, member_id, None, generation)

    def commit(
        self,
        broker: int,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        group: str = GROUP,
        metadata: str = "",
        partitions: tuple[TopicPartition, ...] = (READ,),
        producer: TransactionalProducer | None = None,
    ) -> list[ErrorCode]:
        """The error of the first partition, when it is answered. With a `producer`, in its transaction, without a verification."""
        answers: list[ErrorCode] = []
        committed = CommittedOffset(offset, -1, metadata, self.time.wall_ms())
        self.coordinators[broker].commit(
            group,
            member_id,
            None,
            generation,
            dict.fromkeys(partitions, committed),
            lambda errors: answers.append(errors[partitions[0]]),
            producer,
        )
        return answers

    def mark(self, broker: int, producer: TransactionalProducer, *, is_commit: bool) -> list[ErrorCode]:
        """As WriteTxnMarkers for the groups' partition: the error, when it is answered."""
        coordinator, appends = self.coordinators[broker], self.nodes[broker].manager.appends
        answers: list[ErrorCode] = []

        def written(results: list[ProducePartitionResult]) -> None:
            error = ErrorCode(results[0].error)
            if error is ErrorCode.NONE:
                markers = {OFFSETS.partition: results[0].base_offset}
                coordinator.transaction_completed(producer.producer_id, markers, is_commit)
            answers.append(error)

        batch = marker_batch(producer.producer_id, producer.producer_epoch, Marker(is_commit, 0), self.time.wall_ms())
        appends.append(-1, 30_000, [(OFFSETS, memoryview(batch))], written, origin=AppendOrigin.COORDINATOR)
        return answers

    def position(
        self, broker: int, tp: TopicPartition = READ, group: str = GROUP, *, stable: bool = False
    ) -> int | ErrorCode | None:
        """The committed offset, or why there is no answer."""
        error, found = self.coordinators[broker].fetch_offsets(group, [tp], require_stable=stable)
        if error is not ErrorCode.NONE:
            return error
        committed = found[tp]
        return committed.offset if isinstance(committed, CommittedOffset) else committed

    def listed(self, broker: int, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        error, groups = self.coordinators[broker].list_groups(states, types)
        assert error is ErrorCode.NONE
        return [listing for listing in groups if listing is not None]

    def start_group(self, broker: int) -> None:
        """A stable group of one member, `m`, in generation 1, that has not asked for its assignment."""
        joined = self.join(broker)
        self.pass_time(3.1)
        assert joined[0].error is ErrorCode.NONE, joined
        assert joined[0].generation == 1

    async def start_stable_group(self, broker: int) -> None:
        """A group of one member `m`, in generation 1, that has its assignment."""
        self.start_group(broker)
        synced = self.sync(broker, "m", 1, {"m": b"mine"})
        await self.settle()
        assert synced == [SyncAnswer(ErrorCode.NONE, b"mine", "consumer", "range")], synced


async def turns(count: int = 10) -> None:
    """Lets tasks go on."""
    for _ in range(count):
        await asyncio.sleep(0)
