"""The broker's replicas as the API layer and the control plane see them: append, fetch, offsets, leadership.

All methods but `start` and `shutdown` return at once; answers that must wait are parked (BUG-26). A follower's fetch,
or an ISR change, moves the HW of some partitions; their producers are answered together right after it. Parked fetches
are answered once per loop turn, with all that came in that turn.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Generator, Sequence
from itertools import islice
from typing import Any

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.purgatory import Purgatory, Timers
from broker.replication.appending.appends import Appends
from broker.replication.appending.delayed_produce import AwaitedAppend, DelayedProduce, ProduceResponder
from broker.replication.fetching.fetch_reads import FetchParams, FetchReads, FetchResponder
from broker.replication.fetching.fetches import Fetches
from broker.replication.fetching.large_fetches import WaitingFetch
from broker.replication.fetching.quiet_partitions import QuietIndex, QuietPartitions
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.following.fetcher_manager import FetcherManager
from broker.replication.following.leader_addresses import LeaderAddresses
from broker.replication.following.leader_endpoint import FetchSettings, LeaderEndpoint, NetworkLeaderEndpoint
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.isr_updates import IsrWriter
from broker.replication.leadership_changes import LeadershipChanges, Lookup, TopicOverrides
from broker.replication.log_dirs.directory_failures import DirectoryFailures
from broker.replication.log_dirs.replica_moves import ReplicaMoves
from broker.replication.offset_queries import OffsetQueries
from broker.replication.partition import Partition, Role, Surroundings
from broker.replication.record_deletions import RecordDeletions
from broker.replication.steps import Steps, all_at_once
from broker.settings.config import BrokerConfig
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchRequestPartition
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.network_client import NetworkClient
from protocol.rpc.messages import (
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import BrokerInfo, TopicPartition
from protocol.zk.znodes import topic_id_uuid

log = logging.getLogger(__name__)

TOUCHED_IN_A_TURN = 400
"""Partitions that parked fetches look at. When all leaderships end at once, there are ten thousand."""
LOOKS_IN_A_SLICE = 20
"""A look at a partition that has nothing to do costs a few microseconds."""

__all__ = ["FetchParams", "ReplicaManager"]


class ReplicaManager:
    """See the module. Built on the loop that it then lives on; `timers` and `make_endpoint` are replaced in tests."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        log_manager: LogManager,
        metadata_cache: MetadataCache,
        isr_writer: IsrWriter,
        open_network_client: Callable[[], NetworkClient],
        lease: LeadershipLease,
        event_log: EventLog,
        *,
        own_broker_epoch: Callable[[], int],
        timers: Timers | None = None,
        budget: LoopBudget | None = None,
        make_endpoint: Callable[[int], LeaderEndpoint] | None = None,
        on_directory_failure: Callable[[], None] = lambda: None,
        on_all_directories_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log_manager = log_manager
        self._metadata = metadata_cache
        self._lease = lease
        self._events = event_log
        self._own_broker_epoch = own_broker_epoch
        self._open_network_client = open_network_client
        self._make_endpoint = make_endpoint or self._network_endpoint
        self._timers: Timers = timers or asyncio.get_running_loop()
        self.budget = budget or LoopBudget(self._timers, clock.monotonic)
        self.client_budget = LoopBudget(self._timers, clock.monotonic)
        """Of what clients ask for: however many they are, control requests and followers do not wait in their line."""
        self._produces: Purgatory[TopicPartition] = Purgatory(self._timers, clock.monotonic)
        self._touched: dict[TopicPartition, None] = {}
        self._appended: dict[TopicPartition, None] = {}
        self._moved: dict[TopicPartition, None] = {}
        self._told_topics: dict[uuid.UUID, str] = {}
        self._brokers_looked_at: tuple[BrokerInfo, ...] = ()
        self._turn_is_scheduled = False
        self._leaders = LeaderAddresses(config)
        self._tasks: set[asyncio.Task[None]] = set()
        self._surroundings = Surroundings(
            own_id=config.broker_id,
            clock=clock,
            metadata=metadata_cache,
            isr_writer=isr_writer,
            events=event_log,
            lag_time_max_s=config.replica_lag_time_max_ms / 1000,
            is_suspect=lease.is_suspect,
            high_watermark_moved=self._high_watermark_moved,
            log_start_moved=lambda tp: self.record_deletions.check(tp),
        )
        self.partitions = HostedPartitions(metadata_cache, lambda tp: Partition(tp, self._surroundings))
        window = {
            "samples": config.replication_quota_window_num,
            "sample_s": config.replication_quota_window_size_seconds,
        }
        self._leader_throttle = ReplicationThrottle(
            config.broker_id, lambda topic: topic.leader_replication_throttled_replicas, clock.monotonic, **window
        )
        self._follower_throttle = ReplicationThrottle(
            config.broker_id, lambda topic: topic.follower_replication_throttled_replicas, clock.monotonic, **window
        )
        self._move_throttle = ReplicationThrottle(
            config.broker_id,
            lambda topic: "*",
            clock.monotonic,
            samples=config.alter_log_dirs_replication_quota_window_num,
            sample_s=config.alter_log_dirs_replication_quota_window_size_seconds,
        )
        self.update_throttles(config)
        self._fetches = Fetches(
            self.partitions,
            FetchReads(self.partitions, lease.is_suspect, self._leader_throttle),
            self._timers,
            clock,
            self._leader_throttle,
            lease.is_suspect,
            self._complete_produces,
            self._spawn,
            self.budget,
            self.client_budget,
        )
        self._appends = Appends(
            self.partitions,
            clock,
            lease.is_suspect,
            self._surroundings.refused,
            self._produces,
            self._appended_to,
            self.client_budget,
        )
        self._offsets = OffsetQueries(self.partitions)
        self.record_deletions = RecordDeletions(
            self.partitions, self._timers, lease.is_suspect, self._fetches.answer_followers
        )
        self._fetchers = FetcherManager(self._make_fetcher, config.num_replica_fetchers, event_log)
        self.failures = DirectoryFailures(
            log_manager,
            self.partitions,
            self._fetchers,
            self.leadership_changed,
            event_log,
            on_directory_failure,
            on_all_directories_failed,
        )
        self._changes = LeadershipChanges(
            config.broker_id,
            self.partitions,
            log_manager,
            self._fetchers,
            self,
            event_log,
            metadata_cache,
        )
        self.moves = ReplicaMoves(
            log_manager, self.partitions, self._move_throttle, event_log, self.checkpoint_high_watermarks
        )
        self._is_checkpointing = False
        self.fenced_broker_epoch = -1
        self.on_leadership_change: Callable[[TopicPartition], None] = _nothing
        """Told after each change of a partition's role here, when those who waited for it have been answered (LAI-5)."""
        log_manager.serve(self.failures, self._high_watermark_of)
        lease.on_stall(self._stood_still)
        lease.on_trusted(self._trusted_again)

    # -- produce (REP-4) ------------------------------------------------------------------------------------------

    def append(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> None:
        """Appends to each partition; `respond` gets the results in the order of `entries`.

        It is called before this returns, unless acks is -1 and some append has to wait for its replication.
        """
        self._appends.append(acks, timeout_ms, entries, respond)

    def append_in_slices(
        self,
        acks: int,
        timeout_ms: int,
        entries: Sequence[tuple[TopicPartition, memoryview]],
        respond: ProduceResponder,
    ) -> Coroutine[Any, Any, None] | None:
        """As `append`, for what clients send: `Appends.append_in_slices`."""
        return self._appends.append_in_slices(acks, timeout_ms, entries, respond)

    def when_replicated(
        self, tp: TopicPartition, end_offset: int, timeout_ms: int, respond: Callable[[ErrorCode], None]
    ) -> None:
        """Answers as for an append with acks=all that ends at `end_offset`: what is in the log already is waited for."""
        partition = self.partitions.get(tp)
        if partition is None:
            respond(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        awaited = {tp: AwaitedAppend(0, partition, end_offset, partition.generation)}
        results = [ProducePartitionResult(tp.partition, ErrorCode.NONE)]
        operation = DelayedProduce(
            awaited, results, lambda found: respond(ErrorCode(found[0].error)), self._lease.is_suspect
        )
        self._produces.try_complete_else_watch(operation, (tp,), timeout_ms / 1000)

    # -- fetch (REP-1, REP-2, REP-5) ------------------------------------------------------------------------------

    def fetch(
        self,
        params: FetchParams,
        partitions: Sequence[tuple[TopicPartition, FetchRequestPartition]],
        respond: FetchResponder,
        quiet: QuietPartitions | None = None,
    ) -> WaitingFetch | None:
        """Reads, for a consumer (below the HW) or a follower; parks when there is less than `min_bytes`.

        `quiet` are the partitions of the same session that rest: those that are woken meanwhile follow in the results.
        Returns the parked operation, if it was: `complete_now` answers it early, as when its connection is gone.
        """
        if params.max_bytes > self._config.fetch_max_bytes and not params.is_follower:
            params = params._replace(max_bytes=self._config.fetch_max_bytes)
        return self._fetches.fetch(params, partitions, respond, quiet)

    def begin_fetch(self, quiet: QuietPartitions, replica_epoch: int) -> None:
        """A request of that session came: to be called before its partitions that are awake are put together."""
        self._fetches.wake(self._appended, only_followers=True)
        self._fetches.wake(self._touched)
        self._fetches.begin(quiet, replica_epoch)

    @property
    def quiet(self) -> QuietIndex:
        """The partitions of fetch sessions that rest."""
        return self._fetches.quiet

    # -- offsets (REP-8, INV-16) ----------------------------------------------------------------------------------

    def list_offset(
        self,
        tp: TopicPartition,
        timestamp: int,
        current_leader_epoch: int = -1,
        isolation_level: int = 0,
        replica_id: int = -1,
    ) -> tuple[int, int, int]:
        """(timestamp, offset, epoch) for a time in ms, -1 latest, -2 earliest, -3 max timestamp. Raises KafkaError."""
        return self._offsets.list_offset(tp, timestamp, current_leader_epoch, isolation_level, replica_id)

    def listing_offset(
        self, tp: TopicPartition, timestamp: int, current_leader_epoch: int, isolation_level: int, replica_id: int
    ) -> Generator[Callable[[], Any] | None, Any, tuple[int, int, int]]:
        """As `list_offset`, with stops: `OffsetQueries.listing_offset`."""
        return self._offsets.listing_offset(tp, timestamp, current_leader_epoch, isolation_level, replica_id)

    def offset_for_leader_epoch(
        self, tp: TopicPartition, current_leader_epoch: int, leader_epoch: int, replica_id: int = -1
    ) -> tuple[int, int]:
        """(epoch, end offset), both -1 if it knows no such epoch. Raises KafkaError.

        A follower that asks has partitions to add to its next fetch: its parked ones are answered now.
        """
        answer = self._offsets.end_of_epoch(tp, current_leader_epoch, leader_epoch, replica_id)
        self._fetches.answer_follower(replica_id)
        return answer

    # -- control plane --------------------------------------------------------------------------------------------

    def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, overrides: TopicOverrides | None = None
    ) -> ControlResponse:
        """LAI-1..5. `overrides` are the settings of `topics_to_configure`."""
        return all_at_once(self.applying(request, Lookup(overrides or {})))

    def applying(
        self,
        request: LeaderAndIsrRequest,
        lookup: Lookup,
        held: list[PartitionState] | None = None,
    ) -> Steps:
        """As `become_leader_or_follower`, with stops at which others can have their turn; nothing but `step_down_all` may
        change who leads meanwhile, and then the rest is not applied.

        Partitions whose log would have to be opened, and which are `unknown` to the lookup, are not applied but added to `held`.
        """
        for broker in request.live_leaders:
            self._leaders.learn(broker)
        self._told_topics.update((topic_id_uuid(text), topic) for topic, text in request.topic_ids.items())
        response = yield from self._changes.applying(request, lookup, held)
        self.moves.wake()
        if response.error is ErrorCode.NONE and not self._is_checkpointing:
            self._is_checkpointing = True
            self._spawn(self._checkpoint_regularly())
        return response

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """As the metadata has it, or LeaderAndIsr, which comes before: followers fetch new partitions at once."""
        return self._metadata.topic_name(topic_id) or self._told_topics.get(topic_id)

    def stop_replicas(self, request: StopReplicaRequest) -> ControlResponse:
        """LAI-6."""
        return all_at_once(self.stopping(request))

    def stopping(self, request: StopReplicaRequest) -> Steps:
        """As `stop_replicas`, with stops like those of `applying`."""
        return self._changes.stopping(request)

    def maybe_update_metadata(self, request: UpdateMetadataRequest) -> ControlResponse:
        """Takes a newer view of the cluster; who may join an ISR, or holds a HW back, may have changed with it."""
        return all_at_once(self.updating_metadata(request))

    def updating_metadata(self, request: UpdateMetadataRequest) -> Steps:
        """As `maybe_update_metadata`, with stops like those of `applying`. The view itself changes in one step."""
        refusal = self._changes.refuse_controller(request.controller_id, request.controller_epoch, "UpdateMetadata")
        if refusal is not None:
            return refusal
        yield from self._metadata.updating(request)
        known = self._metadata.topic_name
        self._told_topics = {key: name for key, name in self._told_topics.items() if known(key) is None}
        before, now = self._brokers_looked_at, self._metadata.brokers()
        if now != before:
            for broker in request.brokers:
                self._leaders.learn(broker)
            # Whose fetches are of an earlier life by now: that must not keep it in sync (BUG-23).
            self._fetches.look_at_followers({broker.id for broker in set(before).symmetric_difference(now)})
            for at, partition in enumerate(self.partitions, 1):
                partition.look_again()
                if at % LOOKS_IN_A_SLICE == 0:
                    yield
            self.record_deletions.check_all()
            self._brokers_looked_at = now
        return ControlResponse()

    def deposed_below(self, controller_epoch: int) -> None:
        """ZooKeeper has that controller epoch: requests of earlier controllers are refused from now on (INV-8)."""
        self._changes.controller_epoch = max(self._changes.controller_epoch, controller_epoch)

    def step_down_all(self, reason: str) -> None:
        """The session is lost: nothing is led any more, control requests to this life are void (STA-4)."""
        log.warning("stepping down as leader of everything: %s", reason)
        self._events.write("step_down", reason=reason)
        self.fenced_broker_epoch = max(self.fenced_broker_epoch, self._own_broker_epoch())
        self._changes.step_down(self.partitions)
        self._lease.reset()

    def topics_to_configure(self, request: LeaderAndIsrRequest) -> set[str]:
        """The topics of which the request opens a log here: their settings must be known before."""
        ids = request.topic_ids
        return {s.topic for s in request.partitions if self._changes.opens_log(s, ids.get(s.topic))}

    def missing_logs(self, request: LeaderAndIsrRequest) -> set[TopicPartition]:
        """Partitions that are not new and name this broker in their ISR, but have no log here: their age must be known before."""
        return {s.topic_partition for s in request.partitions if self._changes.is_log_missing(s)}

    # -- lifecycle ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to look for followers that lag."""
        self._spawn(self._shrink_regularly())

    def begin_stop(self) -> None:
        """This broker is about to hand over what it leads. A newer LeaderAndIsr does not make it follow again (LAI-4)."""
        self._fetchers.add_no_more()

    async def shutdown(self) -> None:
        """Stops copying, answers everyone who waits, checkpoints the high watermarks."""
        await self.moves.close()
        await self._fetchers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for at, partition in enumerate(self.partitions, 1):
            if partition.role is Role.LEADER:
                partition.stop()
                self.leadership_changed(partition.tp)
            if at % LOOKS_IN_A_SLICE == 0:
                await asyncio.sleep(0)
        while self._turn_is_scheduled:
            self._turn()
            await asyncio.sleep(0)
        await self.checkpoint_high_watermarks()

    def check_lag(self) -> None:
        """Every half lag time: members of the ISR that lag leave it (REP-3); the HW waits no longer for who is gone."""
        all_at_once(self.checking_lag())

    def checking_lag(self) -> Generator[None]:
        """As `check_lag`, with stops at which others can have their turn."""
        for at, partition in enumerate(self.partitions):
            if at % LOOKS_IN_A_SLICE == 0:
                if at:
                    yield
                if self._lease.is_suspect():
                    return
            if not partition.shrink_if_lagging():
                partition.look_again()

    async def checkpoint_high_watermarks(self) -> None:
        """LAI-5, LOG-3. A directory where that is not possible has failed."""
        marks = {p.tp: p.high_watermark for p in self.partitions if p.log is not None}
        try:
            await self._log_manager.checkpoints.write_high_watermarks(marks)
        except KafkaError as error:
            log.error("the high watermarks could not be checkpointed: %s", error)

    def update_fetchers(self, per_leader: int) -> None:
        """`num.replica.fetchers`, for partitions that are followed from now on."""
        self._fetchers.fetchers_per_leader = per_leader

    def update_throttles(self, config: BrokerConfig) -> None:
        """The rates of the replication throttles, effective from the next fetch."""
        self._leader_throttle.rate = config.leader_replication_throttled_rate
        self._follower_throttle.rate = config.follower_replication_throttled_rate
        self._move_throttle.rate = config.replica_alter_log_dirs_io_max_bytes_per_second

    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        """Those that copy now."""
        return self._fetchers.fetchers()

    def waiting(self) -> tuple[int, int]:
        """(produces, fetches) that are parked now (INV-27)."""
        return len(self._produces), len(self._fetches)

    async def _shrink_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_lag_time_max_ms / 2000)
            for _ in self.checking_lag():
                await self.budget.pause()

    async def _checkpoint_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_high_watermark_checkpoint_interval_ms / 1000)
            await self.checkpoint_high_watermarks()

    # -- what happens to partitions -------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        self._produces.check(tp)
        self.record_deletions.check(tp)
        self._touch(tp)
        self.on_leadership_change(tp)

    def _high_watermark_moved(self, tp: TopicPartition) -> None:
        self._moved[tp] = None
        self._touch(tp)

    def _touch(self, tp: TopicPartition) -> None:
        """There may be news for those who fetch it: looked at in the next turn of the loop."""
        self._touched[tp] = None
        self._look_in_the_next_turn()

    def _appended_to(self, tp: TopicPartition) -> None:
        self._appended[tp] = None
        self._look_in_the_next_turn()

    def _look_in_the_next_turn(self) -> None:
        if not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_scheduled = False
        self._complete_produces()
        touched, appended = _first(self._touched), _first(self._appended)
        if self._touched or self._appended:
            self._look_in_the_next_turn()
        if only_appended := [tp for tp in appended if tp not in touched]:
            self._fetches.appended(only_appended)
        self._fetches.touched(touched)

    def _complete_produces(self) -> None:
        while self._moved:
            moved, self._moved = self._moved, {}
            for tp in moved:
                self._produces.check(tp)

    def _stood_still(self, seconds: float) -> None:
        self._events.write("stood_still", seconds=round(seconds, 3))
        self._surroundings.forgiveness.at = self._clock.monotonic()

    def _trusted_again(self) -> None:
        for tp in self._produces.watched():
            self._produces.check(tp)
        self.record_deletions.check_all()

    def _high_watermark_of(self, tp: TopicPartition) -> int:
        """For retention (INV-22); 0 for a log that nobody has claimed yet."""
        partition = self.partitions.get(tp)
        return partition.high_watermark if partition is not None else 0

    # -- following ------------------------------------------------------------------------------------------------

    def _make_fetcher(self, leader: int, name: str) -> ReplicaFetcher:
        return ReplicaFetcher(
            name,
            self._make_endpoint(leader),
            self._clock,
            self._events,
            retry_s_max=self._config.replica_fetch_backoff_ms / 1000,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
            throttle=self._follower_throttle,
            budget=self.budget,
        )

    def _network_endpoint(self, leader: int) -> LeaderEndpoint:
        settings = FetchSettings.of(self._config, self._own_broker_epoch)
        return NetworkLeaderEndpoint(settings, lambda: self._leaders.of(leader), self._open_network_client)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _first(touched: dict[TopicPartition, None]) -> dict[TopicPartition, None]:
    """Takes some out: the others are looked at in a later turn of the loop."""
    some = dict.fromkeys(islice(touched, TOUCHED_IN_A_TURN))
    for tp in some:
        del touched[tp]
    return some


def _nothing(tp: TopicPartition) -> None:
    """Nobody listens."""
