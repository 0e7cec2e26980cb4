"""Several replica managers in one process, on real logs, driven step by step: no sockets, no ZooKeeper, no sleeps.

A test plays the controller (`Cluster.lead`), decides when followers ask and fetch (`replicate`), when ZooKeeper applies
ISR changes (`FakeIsrWriter.apply`), and how time passes (`Cluster.time`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.process.event_log import EventLog
from broker.replication.fetching.fetch_reads import FetchEntry, FetchParams
from broker.replication.fetching.fetch_session import FetchedTopics
from broker.replication.fetching.large_fetches import WaitingFetch
from broker.replication.fetching.session_cache import FINAL_EPOCH
from broker.replication.following.follower_session import FetchPosition
from broker.replication.following.leader_endpoint import (
    SHORT_WAIT_MS,
    EpochAnswer,
    EpochQuestion,
    LeaderUnavailable,
)
from broker.replication.following.truncation import EpochEnd
from broker.replication.isr_updates import IsrOutcome, IsrProposal, IsrResult
from broker.replication.leadership_changes import Lookup
from broker.replication.partition import Partition
from broker.replication.replica_manager import ReplicaManager, ReplicaServices
from broker.settings.config import BrokerConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import build_batch, decode_records, iter_batches
from protocol.rpc.messages import (
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.topic_ids import topic_id_text
from protocol.types import BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.turns import at_once, no_pause

TP = TopicPartition("t", 0)
TOPIC_ID = topic_id_text(uuid.UUID(int=77))
LAG_S = 10.0
SESSION_TIMEOUT_MS = 3000


class FakeIsrWriter:
    """ZooKeeper's partition states, and the proposals that it has not seen yet."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, LeaderAndIsr] = {}
        self.proposals: list[IsrProposal] = []

    def propose(self, proposal: IsrProposal) -> None:
        self.proposals.append(proposal)

    def apply(self) -> list[tuple[int, ...]]:
        """Writes what was proposed, conditionally; returns the ISRs that were written."""
        written = []
        proposals, self.proposals = self.proposals, []
        for proposal in proposals:
            current = self.states[proposal.topic_partition]
            if proposal.state.zk_version != current.zk_version:
                proposal.on_result(IsrResult(IsrOutcome.CONFLICT, proposal.state))
                continue
            new = LeaderAndIsr(
                current.leader,
                current.leader_epoch,
                proposal.state.isr,
                current.controller_epoch,
                current.zk_version + 1,
            )
            self.states[proposal.topic_partition] = new
            written.append(new.isr)
            proposal.on_result(IsrResult(IsrOutcome.COMMITTED, new))
        return written


class FakeEndpoint:
    """A leader endpoint that calls the leader's replica manager, unless the pair is in its `cuts`."""

    def __init__(self, cluster: Cluster, own_id: int, leader: int) -> None:
        self._cluster, self._own_id, self._leader = cluster, own_id, leader

    def _peer(self) -> ReplicaManager:
        if (self._own_id, self._leader) in self._cluster.cuts:
            raise LeaderUnavailable("cut")
        node = self._cluster.nodes.get(self._leader)
        if node is None:
            raise LeaderUnavailable("down")
        return node.manager

    max_wait_ms = 0

    async def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition], *, is_short: bool = False
    ) -> dict[TopicPartition, FetchPartitionData]:
        node = self._cluster.nodes[self._own_id]
        answers: list[tuple[TopicPartition, FetchPartitionData]] = []
        answered = asyncio.Event()

        def respond(found: list[tuple[TopicPartition, FetchPartitionData]]) -> None:
            answers.extend(found)
            answered.set()

        wait_ms = min(self.max_wait_ms, SHORT_WAIT_MS) if is_short else self.max_wait_ms
        params = FetchParams(self._own_id, node.epoch, wait_ms, 1, 2**20, 0)
        fetch_from(self._peer(), params, [(tp, p.wanted) for tp, p in positions.items()], respond)
        await answered.wait()
        self._cluster.asked.append(set(positions))
        return {tp: self._cluster.change_answer(tp, _copied(data)) for tp, data in answers}

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> dict[TopicPartition, EpochAnswer]:
        peer = self._peer()
        answers = {}
        for tp, question in questions.items():
            try:
                end = peer.offset_for_leader_epoch(
                    tp, question.current_leader_epoch, question.leader_epoch, self._own_id
                )
                answers[tp] = EpochAnswer(ErrorCode.NONE, EpochEnd(*end))
            except KafkaError as error:
                answers[tp] = EpochAnswer(error.code, EpochEnd(-1, -1))
        return answers

    async def list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> int:
        try:
            return list_offset(self._peer(), tp, timestamp, current_leader_epoch, self._own_id)[1]
        except KafkaError as error:
            raise LeaderUnavailable(error.code.name) from error

    async def close(self) -> None:
        return None


class ParkingEndpoint(FakeEndpoint):
    """Fetches wait at the leader, as real ones do: for fetchers that run by themselves."""

    max_wait_ms = 500


def _copied(data: FetchPartitionData) -> FetchPartitionData:
    """The answer as one buffer, as a socket delivers it."""
    joined = b"".join(bytes(part) for part in data.records)
    return data._replace(records=[memoryview(joined)] if joined else [])


@dataclass
class Node:
    """One broker's replication, and what it needs."""

    id: int
    epoch: int
    manager: ReplicaManager
    logs: LogManager
    metadata: MetadataCache
    lease: LeadershipLease

    def carry_out(
        self,
        request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest,
        lookup: Lookup | None = None,
        held: list[PartitionState] | None = None,
    ) -> ControlResponse:
        """A control request, without a pause."""
        match request:
            case LeaderAndIsrRequest():
                answer = self.manager.become_leader_or_follower(request, lookup or Lookup(), held, no_pause)
            case UpdateMetadataRequest():
                answer = self.manager.update_metadata(request, no_pause)
            case StopReplicaRequest():
                answer = self.manager.stop_replicas(request, no_pause)
        return at_once(answer)

    def partition(self, tp: TopicPartition = TP) -> Partition:
        found = self.manager.partitions.get(tp)
        assert found is not None
        return found

    def log(self, tp: TopicPartition = TP) -> Log:
        found = self.partition(tp).log
        assert found is not None
        return found

    def records(self, tp: TopicPartition = TP) -> list[str]:
        """Every value of the log."""
        log = self.log(tp)
        if log.log_start_offset == log.log_end_offset:
            return []
        found = log.read(log.log_start_offset, 2**20, log.log_end_offset, True).records
        data = memoryview(b"".join(bytes(part) for part in found))
        return [
            record.value.decode() for position, _ in iter_batches(data) for record in decode_records(data, position)
        ]


@dataclass
class Cluster:
    """`directory` holds the log directories, `disks` per broker. `cuts` are (asker, asked) pairs that get no answer."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    time: FakeTime = field(default_factory=FakeTime)
    isr: FakeIsrWriter = field(default_factory=FakeIsrWriter)
    nodes: dict[int, Node] = field(default_factory=dict)
    cuts: set[tuple[int, int]] = field(default_factory=set)
    change_answer: Callable[[TopicPartition, FetchPartitionData], FetchPartitionData] = lambda tp, data: data
    """What a follower gets instead of the leader's answer for a partition."""
    asked: list[set[TopicPartition]] = field(default_factory=list)
    """The partitions of each fetch of a follower that was answered."""
    controller_epoch: int = 1
    endpoint: type[FakeEndpoint] = FakeEndpoint
    next_broker_epoch: int = 100
    started: set[int] = field(default_factory=set)
    disks: int = 1
    racks: dict[int, str] = field(default_factory=dict)
    filesystem: Callable[[int], FileSystem] = lambda broker: FileSystem()
    """The disk of a broker, asked for at each of its starts."""
    tp: TopicPartition = TP
    """The partition whose state `lead` sends."""

    async def start(self, *brokers: int) -> Cluster:
        for broker in brokers:
            await self.start_broker(broker)
        return self

    async def start_led(
        self, *brokers: int, isr: tuple[int, ...] = (), overrides: dict[str, str] | None = None
    ) -> Node:
        """Starts the brokers. The first, which is returned, leads in epoch 0. The ISR is all of them, or `isr`."""
        await self.start(*brokers)
        self.lead(brokers[0], 0, isr or brokers, overrides=overrides)
        return self.nodes[brokers[0]]

    async def start_broker(self, broker: int, *, wipe: bool = False) -> Node:
        """Starts it, or starts it again on what its disk has (`wipe`: an empty one), in a new life."""
        self.started.add(broker)
        life = self.next_broker_epoch
        self.next_broker_epoch += 1
        directory = self.directory / f"broker-{broker}-{life if wipe else 0}"
        paths = [str(directory / f"disk-{n}") for n in range(self.disks)] if self.disks > 1 else [str(directory)]
        directory.mkdir(parents=True, exist_ok=True)
        config = BrokerConfig(
            broker_id=broker, log_dirs=",".join(paths), replica_lag_time_max_ms=int(LAG_S * 1000), **self.settings
        )
        logs = LogManager(paths, config.topic_defaults(), self.filesystem(broker), self.time)
        await logs.start()
        metadata = MetadataCache()
        lease = LeadershipLease(self.time, SESSION_TIMEOUT_MS)
        services = ReplicaServices(
            config=config,
            clock=self.time,
            log_manager=logs,
            metadata=metadata,
            isr_writer=self.isr,
            open_network_client=lambda: None,
            lease=lease,
            events=EventLog(None, self.time),
            own_broker_epoch=lambda: self.nodes[broker].epoch,
            timers=self.time,
            random=Random(broker),
            make_endpoint=lambda leader: self.endpoint(self, broker, leader),
            on_leadership_change=lambda tp: self.leadership_changed(broker, tp),
        )
        manager = ReplicaManager(services)
        self.nodes[broker] = Node(broker, life, manager, logs, metadata, lease)
        self.tell_metadata()
        return self.nodes[broker]

    def leadership_changed(self, broker: int, tp: TopicPartition) -> None:
        """The broker's role for the partition has changed. For subclasses."""

    def kill(self, broker: int) -> None:
        """The broker dies: nothing more is written."""
        _abandon(self.nodes.pop(broker).logs)
        self.tell_metadata()

    def close(self) -> None:
        """Gives back the files of all brokers."""
        for node in self.nodes.values():
            _abandon(node.logs)

    def brokers(self) -> tuple[BrokerInfo, ...]:
        return tuple(
            BrokerInfo(node.id, node.epoch, (Endpoint("PLAINTEXT", "h", node.id),), self.racks.get(node.id))
            for node in self.nodes.values()
        )

    def tell_metadata(self) -> None:
        for node in self.nodes.values():
            request = UpdateMetadataRequest(9, self.controller_epoch, node.epoch, (), {}, self.brokers())
            node.carry_out(request)

    def lead(
        self,
        leader: int,
        epoch: int,
        isr: tuple[int, ...],
        *,
        to: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] = (),
        topic_id: str | None = TOPIC_ID,
        overrides: dict[str, str] | None = None,
        is_new: bool = True,
    ) -> dict[int, ControlResponse]:
        """The controller writes the state and sends it to all live replicas (or only to `to`).

        `replicas`: by default all brokers that have been started. `topic_id` None: the topic has no id.
        """
        replicas = replicas or tuple(sorted(self.started))
        topic_ids = {self.tp.topic: topic_id} if topic_id is not None else {}
        old = self.isr.states.get(self.tp)
        version = old.zk_version + 1 if old is not None else 0
        self.isr.states[self.tp] = LeaderAndIsr(leader, epoch, isr, self.controller_epoch, version)
        state = PartitionState(
            self.tp.topic,
            self.tp.partition,
            self.controller_epoch,
            leader,
            epoch,
            isr,
            version,
            replicas,
            is_new=is_new,
        )
        self.time.advance(0)
        answers = {}
        for broker in to if to is not None else replicas:
            if broker in self.nodes:
                node = self.nodes[broker]
                request = LeaderAndIsrRequest(9, self.controller_epoch, node.epoch, (state,), topic_ids, self.brokers())
                answers[broker] = node.carry_out(request, Lookup({self.tp.topic: overrides or {}}))
        return answers

    async def replicate(self, *followers: int, rounds: int = 1) -> None:
        """Each follower asks for epochs once, then fetches once."""
        for _ in range(rounds):
            for broker in followers or tuple(self.nodes):
                for fetcher in self.nodes[broker].manager.fetchers():
                    await _quietly(fetcher.truncate_once())
                    await _quietly(fetcher.fetch_once())
            self.time.turn()

    async def settle(self) -> None:
        """Runs until all records are copied, all ISR changes are written, and no HW can rise further."""
        for _ in range(6):
            await self.replicate()
            self.isr.apply()
            self.pass_time(0.3)

    def pass_time(self, seconds: float) -> None:
        """Time passes while all loops run: the leases tick."""
        steps = max(1, round(seconds / 0.25))
        for _ in range(steps):
            self.time.advance(seconds / steps)
            for node in self.nodes.values():
                node.lease.tick(node.epoch)

    def produce(
        self,
        broker: int,
        *values: str,
        acks: int = -1,
        timeout_ms: int = 5000,
        tp: TopicPartition = TP,
        **producer: int,
    ) -> list[ProducePartitionResult]:
        """Appends one batch, of `producer_id` and so on; the list gets the result when there is one."""
        answer: list[ProducePartitionResult] = []
        batch = build_batch([(None, value.encode(), (), 1000) for value in values], **producer)
        self.nodes[broker].manager.appends.append(acks, timeout_ms, [(tp, memoryview(batch))], answer.extend)
        return answer

    def end_transaction(
        self,
        broker: int,
        producer_id: int,
        *,
        is_commit: bool,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        origin: AppendOrigin = AppendOrigin.COORDINATOR,
    ) -> list[ProducePartitionResult]:
        """Appends the marker, as WriteTxnMarkers does; the list gets the result when there is one."""
        answer: list[ProducePartitionResult] = []
        batch = marker_batch(producer_id, epoch, Marker(is_commit, coordinator_epoch), 1000)
        appends = self.nodes[broker].manager.appends
        appends.append(-1, 5000, [(TP, memoryview(batch))], answer.extend, origin=origin)
        return answer

    def consume(
        self,
        broker: int,
        offset: int,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        epoch: int = -1,
        isolation_level: int = 0,
        rack: str | None = None,
        listener: str = "PLAINTEXT",
    ) -> list[FetchPartitionData]:
        """A consumer's fetch; the list gets the result when there is one. `rack` None: of a version before KIP-392."""
        answer: list[FetchPartitionData] = []
        wanted = FetchRequestPartition(TP.partition, epoch, offset, -1, -1, 2**20)
        params = FetchParams(-1, -1, max_wait_ms, min_bytes, 2**20, isolation_level, rack_id=rack, listener=listener)
        manager = self.nodes[broker].manager
        fetch_from(manager, params, [(TP, wanted)], lambda found: answer.extend(d for _, d in found))
        return answer

    def follower_fetch(
        self, leader: int, follower: int, offset: int, *, epoch: int, life: int | None = None, max_wait_ms: int = 0
    ) -> list[FetchPartitionData]:
        """A follower's fetch, made by hand."""
        answer: list[FetchPartitionData] = []
        wanted = FetchRequestPartition(TP.partition, epoch, offset, -1, 0, 2**20)
        broker_epoch = self.nodes[follower].epoch if life is None else life
        params = FetchParams(follower, broker_epoch, max_wait_ms, 1, 2**20, 0)
        manager = self.nodes[leader].manager
        fetch_from(manager, params, [(TP, wanted)], lambda found: answer.extend(d for _, d in found))
        return answer


def list_offset(
    manager: ReplicaManager,
    tp: TopicPartition,
    timestamp: int,
    leader_epoch: int = -1,
    replica_id: int = -1,
    isolation_level: int = 0,
) -> tuple[int, int, int]:
    """(timestamp, offset, epoch), without a pause."""
    listing = manager.offsets.listing_offset(tp, timestamp, leader_epoch, isolation_level, replica_id)
    done = None
    while True:
        try:
            work = listing.send(done)
        except StopIteration as end:
            found: tuple[int, int, int] = end.value
            return found
        done = work() if work is not None else None


def fetch_from(
    manager: ReplicaManager,
    params: FetchParams,
    entries: Sequence[FetchEntry],
    respond: Callable[[list[tuple[TopicPartition, FetchPartitionData]]], None],
) -> WaitingFetch | None:
    """Fetches without a session."""

    def answered(error: ErrorCode, session_id: int, topics: FetchedTopics) -> None:
        assert (error, session_id) == (ErrorCode.NONE, 0)
        respond([(TopicPartition(str(topic), data.partition), data) for topic, found in topics for data in found])

    wanted = [(tp.topic, [partition]) for tp, partition in entries]
    request = FetchRequest(*params[:6], 0, FINAL_EPOCH, wanted, ())
    return manager.fetches.fetch(params, request, answered, uses_topic_ids=False)


def _abandon(logs: LogManager) -> None:
    """Closes files and locks like a process that dies: nothing more is written."""
    for log in (*logs.logs(), *logs.futures.logs()):
        for segment in log.segments:
            segment.close()
    for directory in logs.log_directories:
        directory.release()


async def _quietly(step: Any) -> None:
    try:
        await step
    except LeaderUnavailable:
        return


def values_of(data: FetchPartitionData) -> list[str]:
    """The record values of a fetch answer."""
    joined = memoryview(b"".join(bytes(part) for part in data.records))
    return [r.value.decode() for position, _ in iter_batches(joined) for r in decode_records(joined, position)]


Scenario = Callable[[Cluster], Awaitable[None]]


def play(directory: Path, scenario: Scenario) -> None:
    """Runs it over brokers that have their logs in the directory; the scenario starts them."""
    cluster = Cluster(directory)
    try:
        asyncio.run(scenario(cluster))
    finally:
        cluster.close()
