"""One broker of the protocol model: the real replication of one partition, without its loops, disk, network and clock.

The pure modules, `Partition`, `LeadershipChanges`, `FetchReads` and `ReplicaFetcher` are the real ones. Their work between two
awaits is one step of the model: a fetcher's coroutine runs until it asks a leader. It then waits as a `Question` until the model lets
the leader serve it and delivers the answer, or loses the question or the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.replication.appending.refused_batches import RefusedBatches
from broker.replication.fetching.fetch_reads import FetchParams, FetchReads
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.following.followed_partitions import FollowedPartition, Phase
from broker.replication.following.follower_session import FetchPosition
from broker.replication.following.leader_endpoint import EARLIEST, EpochAnswer, EpochQuestion, LeaderUnavailable
from broker.replication.following.replica_fetcher import ReplicaFetcher, Work
from broker.replication.following.truncation import UNDEFINED
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.isr_updates import IsrProposal
from broker.replication.leadership_changes import LeadershipChanges, Lookup
from broker.replication.partition import Partition, PartitionContext, Role
from broker.settings.config import TopicConfig
from broker.storage.leader_epochs import LeaderEpochCache
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchPartitionData
from protocol.rpc.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text, topic_id_uuid
from protocol.types import BrokerInfo, TopicPartition
from tests.sim.model_checks import ModelChecks
from tests.sim.model_log import ModelLog, Node
from tests.support.turns import at_once, no_pause

TP = TopicPartition("t", 0)
TOPIC_ID = topic_id_text(topic_id_uuid("AAAAAAAAAAAAAAAAAAAAWA"))
LAG_S = 10.0
READ_MAX = 3
"""Records in an answer, so that replicas lag behind by parts."""

NO_OFFSET = -1

Answer = Any
"""What the endpoint's method gives to the fetcher."""


class EndlessBudget(LoopBudget):
    """Each step of the model is one turn, so no work waits for other work."""

    def __init__(self) -> None:
        """Nothing is measured."""

    def is_spent(self) -> bool:
        return False


class ModelClock:
    """Seconds, moved by the model."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class NoIdempotence(RefusedBatches):
    """Records are numbers here, without sequences."""

    def check_early(self, *_: object) -> None:
        """No record is too early."""


class ListQuestion(NamedTuple):
    """ListOffsets of a follower; `timestamp` is EARLIEST or LATEST."""

    current_leader_epoch: int
    timestamp: int


@dataclass(eq=False, slots=True)
class Question:
    """A request on its way to a leader. `life` is the sender's; `answer` is set when the leader has served it.

    `is_parked`: a fetch that the leader has noted, but found nothing for.
    """

    asker: ModelBroker
    life: int
    leader: int
    payload: FetchPosition | EpochQuestion | ListQuestion
    coroutine: Coroutine[Question, Answer, None] | None = None
    is_parked: bool = False
    answer: Answer = None

    def __await__(self) -> Generator[Question, Answer, Answer]:
        return (yield self)


class ModelEndpoint:
    """The fetcher's way to a leader: every question suspends it."""

    def __init__(self, asker: ModelBroker, leader: int) -> None:
        self._asker, self._leader = asker, leader

    async def fetch(self, positions: Mapping[TopicPartition, FetchPosition], *, is_short: bool = False) -> Answer:
        return {TP: await Question(self._asker, self._asker.life, self._leader, positions[TP])}

    async def epoch_ends(self, questions: Mapping[TopicPartition, EpochQuestion]) -> Answer:
        return {TP: await Question(self._asker, self._asker.life, self._leader, questions[TP])}

    async def list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> int:
        question = ListQuestion(current_leader_epoch, timestamp)
        offset: int = await Question(self._asker, self._asker.life, self._leader, question)
        if offset == NO_OFFSET:
            raise LeaderUnavailable("it does not lead")
        return offset

    async def close(self) -> None:
        return None


class ModelFetchers:
    """FetcherManager without tasks: one fetcher for each leader, which stays (other partitions keep it busy)."""

    def __init__(self, broker: ModelBroker) -> None:
        self._broker = broker
        self._of_leader: dict[int, ReplicaFetcher] = {}
        self.current: tuple[int, ReplicaFetcher] | None = None

    def add(self, leader: int, followed: FollowedPartition) -> None:
        fetcher = self._of_leader.get(leader)
        if fetcher is None:
            fetcher = self._of_leader[leader] = self._broker.make_fetcher(leader)
        fetcher.add(followed)
        self.current = leader, fetcher

    def remove(self, tp: TopicPartition) -> None:
        if self.current is not None:
            self.current[1].remove(tp)
            self.current = None

    def close_idle(self) -> None:
        return None


class ModelMetadata:
    """The live brokers, as the controller told this one."""

    last_full_update = (-1, -1)

    def __init__(self) -> None:
        self.live: dict[int, BrokerInfo] = {}

    def broker(self, broker_id: int) -> BrokerInfo | None:
        return self.live.get(broker_id)

    def partition(self, tp: TopicPartition) -> None:
        return None


@dataclass
class Awaited:
    """A producer with acks=all that waits."""

    end: int
    generation: int
    record: Node


@dataclass
class ModelDisk:
    """What a killed broker leaves: its records, their epochs, and a HW that may be old."""

    nodes: list[Node] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    is_there: bool = False
    since: int | None = None
    """The life that had it first (`broker.storage.directories.disk_history`); None: none yet."""


class Refusal(NamedTuple):
    """The answer to a LeaderAndIsr: the log is missing."""

    controller_epoch: int
    life: int
    leader_epoch: int


class ModelBroker:
    """`disk_id` counts its disks, `life` is its broker epoch, -1 before the first start.

    `is_emptied`: its disk was replaced while it was in the ISR, and it has not left it since. `missing` are answers under way.
    """

    LEADER = Role.LEADER
    FOLLOWER = Role.FOLLOWER
    offline_dirs: tuple[str, ...] = ()

    def __init__(self, broker_id: int, config: TopicConfig, clock: ModelClock) -> None:
        self.id = broker_id
        self.config = config
        self.clock = clock
        self.events = EventLog(None, clock)
        self.disk = ModelDisk()
        self.disk_id = 0
        self.life = -1
        self.is_running = False
        self.is_paused = False
        self.questions: dict[tuple[int, Work], Question] = {}
        self.proposals: list[IsrProposal] = []
        self.awaited: list[Awaited] = []
        self.has_moved = False
        self.is_emptied = False
        self.missing: list[Refusal] = []
        self.created: Callable[[], int] = lambda: 0
        self.checks: ModelChecks

    # -- the process ----------------------------------------------------------------------------------------------

    def start(self, life: int) -> None:
        """Starts on the disk's content, and knows nothing about the cluster."""
        self.life = life
        self.disk.since = life if self.disk.since is None else self.disk.since
        self.is_running = True
        self.is_paused = False
        self.metadata = ModelMetadata()
        context = PartitionContext(
            own_id=self.id,
            clock=self.clock,
            metadata=self.metadata,  # type: ignore[arg-type]
            isr_writer=self,
            events=self.events,
            lag_time_max_s=LAG_S,
            is_suspect=lambda: False,
            high_watermark_moved=self._high_watermark_moved,
            log_start_moved=lambda tp: None,
            refused=NoIdempotence(),
        )
        hosted = HostedPartitions(self.metadata, lambda tp: Partition(tp, context))  # type: ignore[arg-type]
        self.partition = hosted.find_or_make(TP)
        self.log = ModelLog(self.config, TOPIC_ID, self.disk.nodes, self.disk.epochs)
        self.log.on_cut = lambda before, end: self.checks.was_cut(self, before, end)
        throttle = ReplicationThrottle(self.id, lambda config: "", self.clock.monotonic)
        self._throttle = throttle
        self.reads = FetchReads(hosted, lambda: False, throttle)
        self.fetchers = ModelFetchers(self)
        self.changes = LeadershipChanges(
            self.id,
            hosted,
            self,  # type: ignore[arg-type]
            self.fetchers,  # type: ignore[arg-type]
            self.leadership_changed,
            self.events,
            self.metadata,  # type: ignore[arg-type]
        )

    def kill(self) -> list[Question]:
        """Discards all memory. Returns the questions that may still reach their leaders."""
        self.disk.nodes, self.disk.epochs = self.log.nodes, self.log.leader_epochs.entries
        self.disk.is_there = self.disk.is_there or self.partition.log is not None
        self.is_running = False
        under_way = list(self.questions.values())
        for question in under_way:
            assert question.coroutine is not None
            question.coroutine.close()
        self.questions.clear()
        self.proposals.clear()
        self.awaited.clear()
        return [question for question in under_way if question.answer is None and not question.is_parked]

    def lose_unsynced(self, end: int) -> None:
        """Keeps the records below `end`, and their epochs."""
        epochs = LeaderEpochCache(self.disk.epochs)
        epochs.truncate_from_end(end)
        self.disk.nodes, self.disk.epochs = self.disk.nodes[:end], epochs.entries

    def wipe(self, *, is_in_isr: bool = False) -> None:
        """An empty disk in the place of the old one (FLT-33)."""
        self.is_emptied = is_in_isr
        self.disk = ModelDisk()
        self.disk_id += 1

    @property
    def nodes(self) -> list[Node]:
        return self.log.nodes if self.is_running else self.disk.nodes

    def has_prefix(self, nodes: list[Node], end: int) -> bool:
        """Whether its first `end` records are those of `nodes`."""
        own = self.nodes
        return not end or (len(own) >= end and own[end - 1] is nodes[end - 1])

    def is_leader_of(self, epoch: int) -> bool:
        return self.is_running and self.partition.role is Role.LEADER and self.partition.leader_epoch == epoch

    def checkpoint(self) -> bool:
        if self.disk.high_watermark == self.partition.high_watermark or self.partition.log is None:
            return False
        self.disk.high_watermark = self.partition.high_watermark
        return True

    # -- what the controller says ---------------------------------------------------------------------------------

    def take(self, request: LeaderAndIsrRequest | UpdateMetadataRequest) -> None:
        """Handles it as the control listener and the replica manager do (INV-8)."""
        if request.broker_epoch < self.life:
            return
        if self.changes.refuse_controller(request.controller_id, request.controller_epoch, type(request).__name__):
            return
        if isinstance(request, UpdateMetadataRequest):
            live = {broker.id: broker for broker in request.brokers}
            if live != self.metadata.live:
                self.metadata.live = live
                self.partition.look_again()
            return
        before = self.partition.leader_epoch, self.partition.generation
        lookup = Lookup(created={TP: self.created()})
        response = at_once(self.changes.become_leader_or_follower(request, lookup, None, no_pause))
        if any(row.error == ErrorCode.REPLICA_NOT_AVAILABLE for row in response.partitions):
            epoch = request.partitions[0].leader_epoch
            self.missing.append(Refusal(request.controller_epoch, request.broker_epoch, epoch))
        if (self.partition.leader_epoch, self.partition.generation) != before:
            if self.partition.role is Role.LEADER:
                self.checks.leads(self)
            self.disk.is_there = True

    def lose_session(self, life: int) -> None:
        """STA-4: the broker learns that its session has expired, and registers again."""
        self.changes.step_down([self.partition])
        self.life = life

    # -- what the real classes ask of their surroundings ----------------------------------------------------------

    def propose(self, proposal: IsrProposal) -> None:
        self.proposals.append(proposal)

    def _high_watermark_moved(self, tp: TopicPartition) -> None:
        self.has_moved = True
        self.checks.leader_moved_mark(self)

    def leadership_changed(self, tp: TopicPartition) -> None:
        self.answer_producers()

    def get(self, tp: TopicPartition) -> ModelLog | None:
        """LogManager.get: the log that is on the disk."""
        return self.log if self.disk.is_there else None

    def is_of(self, tp: TopicPartition, topic_id: str | None) -> bool:
        """LogManager.is_of: there is only one topic."""
        return True

    def get_or_create(self, tp: TopicPartition, topic_id: str | None, overrides: object) -> ModelLog:
        self.disk.is_there = True
        return self.log

    @property
    def disks_since(self) -> int:
        """LogManager.disks_since."""
        assert self.disk.since is not None
        return self.disk.since

    @property
    def checkpoints(self) -> ModelBroker:
        """LogManager.checkpoints."""
        return self

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        return {TP: self.disk.high_watermark}

    # -- producers ------------------------------------------------------------------------------------------------

    def produce(self, value: int, acks: int) -> bool:
        partition = self.partition
        try:
            info = partition.append_as_leader(value, acks=acks)  # type: ignore[arg-type]
        except KafkaError:
            return False
        if acks == -1:
            self.awaited.append(Awaited(info.last_offset + 1, partition.generation, self.nodes[-1]))
            self.has_moved = True
        return True

    def answer_producers(self) -> None:
        """What the purgatory does when the HW has moved or the leadership changed."""
        self.has_moved = False
        waiting, self.awaited = self.awaited, []
        for awaited in waiting:
            answer = self.partition.acknowledgement(awaited.end, awaited.generation)
            if answer is None:
                self.awaited.append(awaited)
            elif answer is ErrorCode.NONE:
                self.checks.acknowledged(self, awaited.end, awaited.record)

    # -- following ------------------------------------------------------------------------------------------------

    def make_fetcher(self, leader: int) -> ReplicaFetcher:
        return ReplicaFetcher(
            "fetcher",
            ModelEndpoint(self, leader),
            self.clock,
            self.events,
            retry_s_max=0.0,
            partition_max_bytes=READ_MAX,
            throttle=self._throttle,
            budget=EndlessBudget(),
        )

    def ask(self) -> bool:
        """The fetcher's next round. Each of its loops has one question under way."""
        if self.fetchers.current is None:
            return False
        leader, fetcher = self.fetchers.current
        phase = fetcher.phase_of(TP)
        work = Work.TRUNCATING if phase is Phase.TRUNCATING else Work.FETCHING
        if phase is None or (leader, work) in self.questions:
            return False
        self._go_on((leader, work), fetcher.truncate_once() if work is Work.TRUNCATING else fetcher.fetch_once(), None)
        return True

    def deliver(self, key: tuple[int, Work]) -> None:
        question = self.questions.pop(key)
        assert question.coroutine is not None
        self._go_on(key, question.coroutine, question.answer)

    def lose(self, key: tuple[int, Work]) -> Question:
        """The connection broke, or the leader took too long."""
        question = self.questions.pop(key)
        assert question.coroutine is not None
        try:
            question.coroutine.throw(LeaderUnavailable("lost"))
        except (LeaderUnavailable, StopIteration):
            return question
        raise AssertionError("a second question in one round")

    def _go_on(self, key: tuple[int, Work], coroutine: Coroutine[Question, Answer, None], answer: Answer) -> None:
        try:
            question = coroutine.send(answer)
        except StopIteration:
            return
        except LeaderUnavailable:
            return
        question.coroutine = coroutine
        self.questions[key] = question

    # -- leading --------------------------------------------------------------------------------------------------

    def serve(self, question: Question, *, may_park: bool) -> None:
        """Answers a follower, or parks its fetch."""
        asked = question.payload
        if isinstance(asked, FetchPosition):
            params = FetchParams(question.asker.id, question.life, 500, 1, READ_MAX, 0)
            read = self.reads.read(
                params, TP, asked.wanted, READ_MAX, min_one_batch=True, records_fetch=not question.is_parked
            )
            if may_park and not question.is_parked and _is_empty(read.data):
                question.is_parked = True
            else:
                question.answer = read.data
        else:
            question.answer = self._offset_answer(asked)

    def _offset_answer(self, asked: EpochQuestion | ListQuestion) -> EpochAnswer | int:
        try:
            log = self.partition.leader_log(asked.current_leader_epoch)
        except KafkaError as error:
            return EpochAnswer(error.code, UNDEFINED) if isinstance(asked, EpochQuestion) else NO_OFFSET
        if isinstance(asked, EpochQuestion):
            return EpochAnswer(ErrorCode.NONE, self.partition.end_of_epoch(asked.leader_epoch))
        return log.log_start_offset if asked.timestamp == EARLIEST else log.log_end_offset


def _is_empty(data: FetchPartitionData) -> bool:
    return data.error == ErrorCode.NONE and data.diverging_epoch is None and not data.records
