"""The broker's replicas: creates the parts that serve them, and passes events of a partition from one part to the others.

Callers use the parts: `appends`, `fetches`, `offsets`, `record_deletions`, `moves`, `failures`. Control requests, start
and stop are here. No handler waits: an answer that has to wait is parked (BUG-26). A follower's fetch may move the high watermarks
of many partitions: their producers are answered together after it. After any other move they are answered at the end of the loop's
turn, together with the parked fetches, for all events of the turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.purgatory import Purgatory, Timers
from broker.replication.appending.appends import Appends
from broker.replication.appending.transaction_verification import TransactionVerification
from broker.replication.fetching.closest_replica import ClosestReplica
from broker.replication.fetching.fetch_reads import FetchReads, GuardedReads
from broker.replication.fetching.fetches import Fetches, FetchLoop
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.fetching.session_cache import CacheLimits, FetchSessionCache
from broker.replication.following.fetcher_manager import FetcherManager
from broker.replication.following.leader_endpoint import (
    FetchSettings,
    LeaderAddresses,
    LeaderEndpoint,
    NetworkLeaderEndpoint,
)
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.replication.high_watermark_samples import HighWatermarkSamples
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.isr_updates import IsrWriter
from broker.replication.leadership_changes import LeadershipChanges, Lookup, Pause
from broker.replication.log_dirs.directory_failures import DirectoryFailures
from broker.replication.log_dirs.replica_moves import ReplicaMoves
from broker.replication.offset_queries import OffsetQueries
from broker.replication.partition import Partition, PartitionContext, Role
from broker.replication.record_deletions import RecordDeletions
from broker.settings.config import BrokerConfig, TopicConfig
from broker.storage.log_manager import LogManager
from protocol.errors import KafkaError
from protocol.network_client import NetworkClient
from protocol.rpc.messages import (
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import BrokerInfo, TopicPartition

log = logging.getLogger(__name__)

LOOKS_IN_A_SLICE = 20
"""Partitions checked between two pauses. One takes a few microseconds."""
SKIP_IN_LOOKS = 0.1
"""What it costs to see that a partition needs no such check, as a part of one check."""
COUNT_S = 1.0
"""How old the numbers of appended records and bytes may be."""
COUNTED_IN_A_SLICE = 100
"""Partitions whose appended records are counted between two pauses. One takes less than a microsecond."""


def _nothing(tp: TopicPartition) -> None:
    """The default listener does nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaServices:
    """What the replica manager works with. Tests replace `timers` and `make_endpoint`.

    `on_leadership_change` is called after each change of a partition's role or leader epoch on this broker (LAI-5).
    """

    config: BrokerConfig
    clock: Clock
    log_manager: LogManager
    metadata: MetadataCache
    isr_writer: IsrWriter
    open_network_client: Callable[[], NetworkClient]
    lease: LeadershipLease
    events: EventLog
    own_broker_epoch: Callable[[], int]
    timers: Timers | None = None
    random: Random = field(default_factory=Random)
    make_endpoint: Callable[[int], LeaderEndpoint] | None = None
    on_leadership_change: Callable[[TopicPartition], None] = _nothing
    on_directory_failure: Callable[[], None] = lambda: None
    on_all_directories_failed: Callable[[], None] = lambda: None


class ReplicaManager:
    """See the module. It must be created on the loop that it runs on."""

    def __init__(self, services: ReplicaServices) -> None:
        self._services = services
        self._config = config = services.config
        self._clock = clock = services.clock
        self._log_manager = log_manager = services.log_manager
        self._metadata = metadata = services.metadata
        self._lease = lease = services.lease
        self._events = services.events
        self._make_endpoint = services.make_endpoint or self._network_endpoint
        self._timers: Timers = services.timers or asyncio.get_running_loop()
        self.budget = LoopBudget(self._timers, clock.monotonic)
        self.client_budget = LoopBudget(self._timers, clock.monotonic)
        """For the requests of clients. Control requests and followers use `budget`, and so do not wait for clients."""
        self._produces: Purgatory[TopicPartition] = Purgatory(self._timers, clock.monotonic)
        self._flushes: Purgatory[TopicPartition] = Purgatory(self._timers, clock.monotonic)
        """Producers with acks=1 that wait for a flush. Not in `_produces`: there they would wait like earlier ones with acks=all."""
        self._moved: dict[TopicPartition, None] = {}
        self._uncounted: dict[TopicPartition, None] = {}
        """Partitions with appended records that the metrics do not have yet."""
        self._brokers_looked_at: tuple[BrokerInfo, ...] = ()
        self._leaders = LeaderAddresses(config)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_checkpointing = False
        self.fenced_broker_epoch = -1
        self._partition_context = context = self._new_partition_context()
        self.topic_stats = context.topic_stats
        self.isr_stats = context.isr_stats
        self.partitions = HostedPartitions(metadata, lambda tp: Partition(tp, context))
        self._leader_throttle = self._replication_throttle(lambda topic: topic.leader_replication_throttled_replicas)
        self._follower_throttle = self._replication_throttle(
            lambda topic: topic.follower_replication_throttled_replicas
        )
        self._move_throttle = ReplicationThrottle(
            config.broker_id,
            lambda topic: "*",
            clock.monotonic,
            samples=config.alter_log_dirs_replication_quota_window_num,
            sample_s=config.alter_log_dirs_replication_quota_window_size_seconds,
        )
        self.update_throttles(config)
        self.fetches = self._new_fetches()
        self.appends = Appends(
            self.partitions,
            clock,
            lease.is_suspect,
            context.refused,
            self._produces,
            self._flushes,
            self.fetches.appended_to,
            self.client_budget,
            TransactionVerification(self.partitions, config.transaction_partition_verification_enable),
        )
        self.offsets = OffsetQueries(self.partitions)
        self.record_deletions = RecordDeletions(
            self.partitions, self._timers, lease.is_suspect, self.fetches.answer_followers
        )
        self._fetchers = FetcherManager(self._make_fetcher, config.num_replica_fetchers, self._events)
        self.failures = DirectoryFailures(
            log_manager,
            self.partitions,
            self._fetchers,
            self.leadership_changed,
            self._events,
            services.on_directory_failure,
            services.on_all_directories_failed,
        )
        self._changes = LeadershipChanges(
            config.broker_id,
            self.partitions,
            log_manager,
            self._fetchers,
            self.leadership_changed,
            self._events,
            metadata,
        )
        self.moves = ReplicaMoves(
            log_manager, self.partitions, self._move_throttle, self._events, self.checkpoint_high_watermarks
        )
        self._samples = HighWatermarkSamples(self.partitions, self._events, clock.monotonic, self.budget.pause)
        log_manager.serve(self.failures, self._high_watermark_of, self.budget.pause, self._more_claimable)
        lease.on_stall(self._stood_still)
        lease.on_trusted(self._trusted_again)

    # -- how it is built -------------------------------------------------------------------------------------------

    def _new_partition_context(self) -> PartitionContext:
        return PartitionContext(
            own_id=self._config.broker_id,
            clock=self._clock,
            metadata=self._metadata,
            isr_writer=self._services.isr_writer,
            events=self._events,
            lag_time_max_s=self._config.replica_lag_time_max_ms / 1000,
            is_suspect=self._lease.is_suspect,
            high_watermark_moved=self._high_watermark_moved,
            log_start_moved=lambda tp: self.record_deletions.check(tp),
            follower_moved=lambda tp: self.fetches.follower_moved(tp),
        )

    def _replication_throttle(self, throttled: Callable[[TopicConfig], str]) -> ReplicationThrottle:
        return ReplicationThrottle(
            self._config.broker_id,
            throttled,
            self._clock.monotonic,
            samples=self._config.replication_quota_window_num,
            sample_s=self._config.replication_quota_window_size_seconds,
        )

    def _new_fetches(self) -> Fetches:
        config, clock, metadata, is_suspect = self._config, self._clock, self._metadata, self._lease.is_suspect
        names_closest = bool(config.replica_selector_class)
        closest = ClosestReplica(metadata, config.broker_id, clock.monotonic) if names_closest else None
        limits = CacheLimits.of(config)
        reads = GuardedReads if config.authorizer_class_name else FetchReads
        return Fetches(
            FetchSessionCache(limits, clock, self.partitions, metadata, config.broker_id, self._services.random),
            reads(self.partitions, is_suspect, self._leader_throttle, closest),
            self._leader_throttle,
            FetchLoop(self._timers, clock.monotonic, self._spawn, self.budget, self.client_budget),
            is_suspect,
            self._complete_produces,
            config.fetch_max_bytes,
            self.topic_stats,
            self._uncounted.update,
            tells_high_watermarks=names_closest,
        )

    # -- offsets (REP-8, INV-16) ----------------------------------------------------------------------------------

    def offset_for_leader_epoch(
        self, tp: TopicPartition, current_leader_epoch: int, leader_epoch: int, replica_id: int = -1
    ) -> tuple[int, int]:
        """(epoch, end offset), both -1 for an unknown epoch. Raises KafkaError.

        A follower that asks has partitions to add to its next fetch, so its parked fetches are answered now.
        """
        answer = self.offsets.end_of_epoch(tp, current_leader_epoch, leader_epoch, replica_id)
        self.fetches.answer_follower(replica_id)
        return answer

    # -- control plane --------------------------------------------------------------------------------------------

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, lookup: Lookup, held: list[PartitionState] | None, pause: Pause
    ) -> ControlResponse:
        """LAI-1..5: see `LeadershipChanges.become_leader_or_follower`. If `step_down_all` is called in a pause, `pause` raises."""
        refusal = self._changes.refuse_controller(request.controller_id, request.controller_epoch, "LeaderAndIsr")
        if refusal is not None:
            return refusal
        for broker in request.live_leaders:
            self._leaders.learn(broker)
        response = await self._changes.become_leader_or_follower(request, lookup, held, pause)
        self._samples.something_happened()
        self.moves.wake()
        if not self._is_checkpointing:
            self._is_checkpointing = True
            self._spawn(self._checkpoint_regularly())
        return response

    async def stop_replicas(self, request: StopReplicaRequest, pause: Pause) -> ControlResponse:
        """LAI-6."""
        return await self._changes.stop_replicas(request, pause)

    async def update_metadata(self, request: UpdateMetadataRequest, pause: Pause) -> ControlResponse:
        """Updates the metadata cache: prepares it with pauses, then changes all at once. If the live brokers changed, checks every
        partition again: other followers may now join its ISR or hold its high watermark back.
        """
        refusal = self._changes.refuse_controller(request.controller_id, request.controller_epoch, "UpdateMetadata")
        if refusal is not None:
            return refusal
        for _ in self._metadata.updating(request):
            await pause()
        self._samples.something_happened()
        self.partitions.forget_topics_in_metadata()
        before, now = self._brokers_looked_at, self._metadata.brokers()
        if now != before:
            for broker in request.brokers:
                self._leaders.learn(broker)
            # A fetch session of a broker's earlier life must not keep a follower in sync (BUG-23).
            self.fetches.look_at_followers({broker.id for broker in set(before).symmetric_difference(now)})
            for at, partition in enumerate(self.partitions, 1):
                partition.look_again()
                if at % LOOKS_IN_A_SLICE == 0:
                    await pause()
            self.record_deletions.check_all()
            self._brokers_looked_at = now
        return ControlResponse()

    def refuse_controllers_before(self, controller_epoch: int) -> None:
        """ZooKeeper has that controller epoch: requests of earlier controllers are refused from now on (INV-8)."""
        self._changes.controller_epoch = max(self._changes.controller_epoch, controller_epoch)

    def step_down_all(self, reason: str) -> None:
        """The session is lost: this broker stops leading, and refuses control requests to this life of the broker (STA-4)."""
        log.warning("stepping down as leader of all partitions: %s", reason)
        self._events.write("step_down", reason=reason)
        self.fenced_broker_epoch = max(self.fenced_broker_epoch, self._services.own_broker_epoch())
        self._changes.step_down(self.partitions)
        self._lease.reset()

    def topics_to_configure(self, request: LeaderAndIsrRequest) -> set[str]:
        """The topics whose logs the request opens or creates here. Their settings must be read first."""
        ids = request.topic_ids
        return {s.topic for s in request.partitions if self._changes.opens_log(s, ids.get(s.topic))}

    def missing_logs(self, request: LeaderAndIsrRequest) -> set[TopicPartition]:
        """Partitions that are not new and have this broker in their ISR, but no log here. Their creation zxid must be read first."""
        return {s.topic_partition for s in request.partitions if self._changes.is_log_missing(s)}

    # -- lifecycle ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts `check_lag`, every half lag time, the samples of high watermarks, and `count_appended`."""
        self._spawn(self._shrink_regularly())
        self._spawn(self._count_appended_regularly())
        self._spawn(self._samples.run())

    def begin_stop(self) -> None:
        """This broker is about to hand over its leaderships. It starts no more fetchers, even for a newer LeaderAndIsr (LAI-4)."""
        self._fetchers.add_no_more()

    async def shutdown(self) -> None:
        """Stops copying, answers all waiting requests, and checkpoints the high watermarks."""
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
        while self.fetches.is_turn_due:
            self.fetches.look()
            await asyncio.sleep(0)
        await self.checkpoint_high_watermarks()

    async def check_lag(self) -> None:
        """Proposes ISRs without the members that lag, so that high watermarks do not wait for them (REP-3)."""
        if self._lease.is_suspect():
            return
        looks = 0.0
        for partition in self.partitions:
            if looks >= LOOKS_IN_A_SLICE:
                looks = 0.0
                await self.budget.pause()
                if self._lease.is_suspect():
                    return
            if partition.is_settled():
                looks += SKIP_IN_LOOKS
                continue
            looks += 1.0
            if not partition.shrink_if_lagging():
                partition.look_again()

    async def count_appended(self) -> None:
        """Brings the metrics of the topics up to date. Not at each append, and not in each turn of the loop: that would cost more."""
        uncounted = list(self._uncounted)
        self._uncounted.clear()
        for at, tp in enumerate(uncounted, 1):
            partition = self.partitions.get(tp)
            if partition is not None:
                partition.count_appended()
            if at % COUNTED_IN_A_SLICE == 0:
                await self.budget.pause()

    async def checkpoint_high_watermarks(self) -> None:
        """LAI-5, LOG-3. If the file of a directory cannot be written, the directory has failed."""
        try:
            await self._log_manager.checkpoints.write_high_watermarks(self._known_high_watermark_of)
        except KafkaError as error:
            log.error("the high watermarks could not be checkpointed: %s", error)

    def _known_high_watermark_of(self, tp: TopicPartition) -> int | None:
        partition = self.partitions.get(tp)
        return partition.high_watermark if partition is not None and partition.log is not None else None

    def update_fetchers(self, per_leader: int) -> None:
        """Sets `num.replica.fetchers`. It takes effect for partitions that this broker begins to follow later."""
        self._fetchers.fetchers_per_leader = per_leader

    def update_throttles(self, config: BrokerConfig) -> None:
        """Sets the rates of the replication throttles (bytes per second), effective from the next fetch."""
        self._leader_throttle.rate = config.leader_replication_throttled_rate
        self._follower_throttle.rate = config.follower_replication_throttled_rate
        self._move_throttle.rate = config.replica_alter_log_dirs_io_max_bytes_per_second

    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        """The fetchers that copy now."""
        return self._fetchers.fetchers()

    @property
    def produces(self) -> Purgatory[TopicPartition]:
        """Produce requests that wait for replication."""
        return self._produces

    @property
    def flushes(self) -> Purgatory[TopicPartition]:
        """Produce requests that wait for a flush."""
        return self._flushes

    def waiting(self) -> tuple[int, int]:
        """(Produce requests, Fetch requests) that are parked now (INV-27)."""
        return len(self._produces) + len(self._flushes), len(self.fetches)

    async def _shrink_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_lag_time_max_ms / 2000)
            await self.check_lag()

    async def _checkpoint_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.replica_high_watermark_checkpoint_interval_ms / 1000)
            await self.checkpoint_high_watermarks()

    # -- events of partitions -------------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        self._produces.check(tp)
        self._flushes.check(tp)
        self.record_deletions.check(tp)
        self.fetches.touch(tp)
        self._services.on_leadership_change(tp)

    async def _count_appended_regularly(self) -> None:
        while True:
            await asyncio.sleep(COUNT_S)
            await self.count_appended()

    def _high_watermark_moved(self, tp: TopicPartition) -> None:
        self._moved[tp] = None
        self.fetches.high_watermark_moved(tp)

    def _more_claimable(self, tp: TopicPartition) -> None:
        """A flush has ended that producers, or the leader, wait for."""
        partition = self.partitions.get(tp)
        if partition is None:
            return
        if partition.role is Role.LEADER:
            partition.advance_high_watermark()
            self._flushes.check(tp)
        else:
            self._fetchers.more_claimable(tp)

    def _complete_produces(self) -> None:
        while self._moved:
            moved, self._moved = self._moved, {}
            for tp in moved:
                self._produces.check(tp)

    def _stood_still(self, seconds: float) -> None:
        self._events.write("stood_still", seconds=round(seconds, 3))
        self._partition_context.standstill.at = self._clock.monotonic()

    def _trusted_again(self) -> None:
        for purgatory in (self._produces, self._flushes):
            for tp in purgatory.watched_keys():
                purgatory.check(tp)
        self.record_deletions.check_all()

    def _high_watermark_of(self, tp: TopicPartition) -> int:
        """For retention (INV-22); 0 for a log whose partition no LeaderAndIsr has named yet."""
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
        settings = FetchSettings.of(self._config, self._services.own_broker_epoch)
        return NetworkLeaderEndpoint(settings, lambda: self._leaders.of(leader), self._services.open_network_client)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
