"""The coordinator of the groups whose partitions of `__consumer_offsets` this broker leads (CLI-2, LAI-5, INV-23, INV-24, BUG-25).

    request -> `Group` (pure) -> effects: answers, and records for the log -> when replicated, back to `Group`

Nothing here waits; everything runs on the loop. A group is held until its partition is lost or the group is removed. If an append
ends later, or a deadline passes, its callback finds `is_held` false and does nothing.

Requests get NOT_COORDINATOR while the lease is suspect (this process stood still), or while this broker is cut off from ZooKeeper
and its followers: another broker may coordinate the groups by now. Time in which the process stood still does not count against
member sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from broker.cluster.lease import LeadershipLease
from broker.cluster.metadata_cache import MetadataCache
from broker.coordination.loading import PartitionLoading
from broker.coordination.memory_limit import MemoryLimit
from broker.coordination.ownership import Ownership
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.conversion import to_new
from broker.groups.consumer_group.member import JOINING, MEMBER_BYTES, topics_bytes
from broker.groups.consumer_group.messages import (
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from broker.groups.consumer_group.subscriptions import MATCH_BYTES, REGEX_BYTES
from broker.groups.consumer_groups import ClusterTopics, ConsumerGroups
from broker.groups.deletions import GroupDeletions, record_keys
from broker.groups.effects import GroupEffects
from broker.groups.group.group import Group, gets_only_an_id
from broker.groups.group.limits import GROUP_BYTES, GROUP_ID_BYTES_MAX, complaint
from broker.groups.group.members import Member
from broker.groups.group.messages import (
    CLASSIC,
    CONSUMER,
    CommittedOffset,
    Effect,
    FetchedOffset,
    GroupDescription,
    GroupListing,
    GroupMetadata,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    TransactionalProducer,
)
from broker.groups.group.offsets import GroupOffsets, PendingCommit
from broker.groups.group.states import GroupState
from broker.groups.group_events import GroupEvents
from broker.groups.held_groups import AnyGroup, GroupsPartition, HeldGroup, HeldGroups, PendingIds
from broker.groups.offsets_topic.consumer_group_image import ConsumerGroupImage
from broker.groups.offsets_topic.loading import OffsetsReader, StoredGroup
from broker.groups.offsets_topic.writer import OffsetsWriter, WriterSettings
from broker.groups.open_transactions import EndedTransaction
from broker.groups.timers import GroupTimers
from broker.groups.transactions import GroupTransactions
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import SlicedWork
from broker.purgatory import Timers
from broker.replication.replica_manager import ReplicaManager
from broker.settings.config import BrokerConfig
from broker.settings.group_configs import HEARTBEAT, SESSION, GroupConfigs, defaults
from protocol.errors import ErrorCode, KafkaError
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

UPGRADES = ("bidirectional", "upgrade")
"""Values of `group.consumer.migration.policy` by which a classic group with members may become one of the new kind."""

CommitResponder = Callable[[dict[TopicPartition, ErrorCode]], None]


class GroupCoordinator:
    """See the module's docstring. `start` starts the expiry of offsets; `close` gives up all groups."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        lease: LeadershipLease,
        events: EventLog,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._lease = lease
        self._settings = GroupSettings(
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
            config.group_initial_rebalance_delay_ms,
            config.group_max_size,
        )
        self.configs = GroupConfigs()
        self.configs.on_change = self._group_config_changed
        writer_settings = WriterSettings(config.offsets_commit_timeout_ms, config.offsets_topic_compression_codec)
        self._writer = OffsetsWriter(replicas.appends, clock, writer_settings)
        self._groups = HeldGroups()
        self._events = GroupEvents(events, self._groups, clock.monotonic)
        self._pending_ids = PendingIds()
        self._memory = MemoryLimit(
            "group.memory.max.bytes",
            config.group_memory_max_bytes,
            self._groups,
            "groups",
            "new members and offsets",
            clock.monotonic,
        )
        self._stood_still_s = 0.0
        self._timers = GroupTimers[HeldGroup](timers, self._now, lease.is_suspect, self._due)
        self._sliced = sliced = SlicedWork(timers, clock.monotonic)
        reader = OffsetsReader(replicas, clock, config.offsets_load_buffer_size)
        self._loading = PartitionLoading[GroupsPartition, StoredGroup](
            OFFSETS_TOPIC, reader.load, replicas, timers, sliced, self.group_loaded, self.partition_loaded
        )
        self.ownership = Ownership[GroupsPartition](
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            clock,
            metadata,
            replicas,
            lease,
            GroupsPartition,
            self._groups.owner_of,
            self._loading.start,
            self._partition_lost,
        )
        self._deletions = GroupDeletions(
            config, clock, timers, lease, self._writer, self._groups, sliced, self._deleted, self._topic_id
        )
        self.transactions = GroupTransactions(sliced, replicas.appends.verification, self._transaction_ended)
        self._effects = GroupEffects(self._writer, self._stored, timers)
        self._topics = ClusterTopics(metadata)
        self._consumers = ConsumerGroups(
            self._writer,
            self._groups,
            self._events,
            self._timers,
            timers,
            self._topics,
            self._now,
            self._wall_ms,
            config.offsets_commit_timeout_ms / 1000,
            self._downgraded if config.group_consumer_migration_policy in ("bidirectional", "downgrade") else None,
            sliced,
        )
        metadata.on_change(self._consumers.topics_changed)
        lease.on_stall(self._stood_still)
        lease.on_trusted(self._timers.arm_again)

    def start(self) -> None:
        self._deletions.start()

    async def close(self) -> None:
        """Gives up all groups. Waiting requests get NOT_COORDINATOR, and this broker gains no more partitions."""
        self._deletions.close()
        self.ownership.close()
        await self._sliced.finish()
        await self._loading.close()

    @property
    def groups(self) -> HeldGroups:
        """For the metrics, which only read."""
        return self._groups

    # -- which groups -------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` whose leader is the group's coordinator."""
        return self.ownership.partition_of(group_id)

    def check(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """NONE if this broker may answer for the group now. `may_be_empty`: the group id '' is allowed, as for offset commits."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        if len(group_id) * 4 > GROUP_ID_BYTES_MAX and len(group_id.encode()) > GROUP_ID_BYTES_MAX:
            return ErrorCode.INVALID_GROUP_ID
        return self.ownership.check(group_id)

    def _find_or_make(self, group_id: str) -> HeldGroup:
        held = self._groups.get(group_id)
        if held is None:
            owned = self.ownership.owner_of(group_id)
            assert owned is not None
            group = Group(group_id, self._settings, on_transition=self._events.listener(group_id))
            held = HeldGroup(group_id, owned, group, GroupOffsets())
            self._groups.add(held)
        return held

    def _forget_if_unused(self, held: HeldGroup) -> None:
        """Drops a group that never had a generation and has no records in the log."""
        group = held.group
        is_unused = group.is_empty and not group.is_stored and group.next_deadline() is None
        if is_unused and held.is_held and held.offsets.is_empty and not held.is_being_deleted:
            self._groups.remove(held)
            self._timers.drop(held)

    @staticmethod
    def _growth(held: HeldGroup | None, request: JoinRequest) -> int:
        """Bytes that a JoinGroup adds to the groups. Pending ids have their own limit."""
        if held is not None and held.classic is not None:
            return held.classic.growth(request)
        return 0 if gets_only_an_id(request) else GROUP_BYTES + Member.joining(request, request.new_member_id).size()

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        error = self.check(request.group_id)
        held = self._groups.get(request.group_id)
        if error is ErrorCode.NONE and held is None:
            error = self._error_without_group(request)
        if error is ErrorCode.NONE and held is not None and held.is_being_deleted:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is ErrorCode.NONE and not self._memory.has_room_for(self._growth(held, request)):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is ErrorCode.NONE and held is not None and held.classic is None and held.group.is_empty:
            error = self._make_classic(held, request)
        if error is not ErrorCode.NONE:
            respond(JoinAnswer(error, request.member_id))
            return
        held = held or self._find_or_make(request.group_id)
        group = held.classic
        if group is None:
            self._join_new_kind(held, request, respond)
            return
        ticket = self._effects.join_waits(respond)
        self._pending_ids.remove(held.group_id, request.member_id)
        self._act(held, group.join(request, ticket, self._now(), self._wall_ms()))
        if group.is_pending(request.new_member_id):
            self._pending_ids.add(held.group_id, request.new_member_id)
            self._forget_pending_ids()
        self._forget_if_unused(held)

    def _make_classic(self, held: HeldGroup, request: JoinRequest) -> ErrorCode:
        """The first classic member makes an empty group of the new kind a classic one, unless the group would refuse it."""
        group = Group(held.group_id, self._settings, on_transition=self._events.listener(held.group_id))
        error = self._error_without_group(request) or group.refusal(request)
        if error is ErrorCode.NONE and held.group.is_stored:
            tombstones = [(key, None) for key in record_keys(held)]
            error = self._writer.store_changes(held.owner.number, tombstones, lambda error: None)
        if error is ErrorCode.NONE:
            held.group = group
        return error

    def _join_new_kind(self, held: HeldGroup, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        """A classic member joins a group of the new kind."""
        settings, group = self._settings, held.consumer
        error = ErrorCode.NONE
        if group is None or group.is_empty:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif not settings.min_session_ms <= request.session_timeout_ms <= settings.max_session_ms:
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif complaint(request):
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE or group is None:
            respond(JoinAnswer(error, request.member_id))
        else:
            self._consumers.join(held, group, request, respond)

    def _downgraded(self, held: HeldGroup, metadata: GroupMetadata) -> None:
        """A group of the new kind has become a classic one; its members join again."""
        listener = self._events.listener(held.group_id)
        held.group = group = Group.restored(
            held.group_id, metadata, self._settings, self._now(), on_transition=listener
        )
        self._act(held, group.rebalance(self._now(), self._wall_ms()))

    def _forget_pending_ids(self) -> None:
        """Drops the oldest ids above the limits. A client that joins with a dropped id gets UNKNOWN_MEMBER_ID, and joins again."""
        for group_id, member_id in self._pending_ids.too_many():
            held = self._groups.get(group_id)
            if held is not None and held.classic is not None:
                self._act(held, held.classic.forget_pending(member_id, self._now(), self._wall_ms()))
                self._forget_if_unused(held)

    def _error_without_group(self, request: JoinRequest) -> ErrorCode:
        settings = self._settings
        if not settings.min_session_ms <= request.session_timeout_ms <= settings.max_session_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.NONE

    def sync(self, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None:
        error = self.check(request.group_id)
        held = self._groups.get(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The log does not contain waiting SyncGroups. The members must join again, with this coordinator.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        elif error is ErrorCode.NONE and held is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if held is None or error is not ErrorCode.NONE:
            respond(SyncAnswer(error))
            return
        if isinstance(held.group, ConsumerGroup):
            self._consumers.sync(held, held.group, request, respond)
            return
        ticket = self._effects.sync_waits(respond)
        self._act(held, held.group.sync(request, ticket, self._now(), self._wall_ms()))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.check(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As in Kafka, because clients treat COORDINATOR_LOAD_IN_PROGRESS as a bug. The load restarts every member's session.
            return ErrorCode.NONE
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE or held is None:
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(held.group, ConsumerGroup):
            return self._consumers.classic_heartbeat(held, held.group, member_id, instance_id, generation)
        return held.group.heartbeat(member_id, instance_id, generation, self._now())

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], respond: Callable[[ErrorCode, list[ErrorCode]], None]
    ) -> None:
        """`respond` gets the error of the request and, if that is NONE, one error for each member."""
        error = self.check(group_id)
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE:
            respond(error, [])
        elif held is None:
            respond(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
        elif isinstance(held.group, ConsumerGroup):
            self._consumers.leave(held, held.group, members, respond)
        else:
            errors, effects = held.group.leave(members, self._now(), self._wall_ms())
            respond(ErrorCode.NONE, errors)
            for leaving in members:
                self._pending_ids.remove(group_id, leaving.member_id)
            self._act(held, effects)
            self._forget_if_unused(held)

    # -- members of groups of the new kind (KIP-848) ------------------------------------------------------------------

    def keep_alive(self, group_id: str, member_id: str, epoch: int, client_id: str, client_host: str) -> int | None:
        """For a heartbeat that says nothing besides these: the interval until the next one, in ms, if it is only a sign of life, as nearly
        all are. None: it is one for `consumer_heartbeat`."""
        held = self._groups.get(group_id)
        group = held.group if held is not None else None
        if held is None or not isinstance(group, ConsumerGroup) or self.check(group_id) is not ErrorCode.NONE:
            return None
        if held.last_write is not None or held.is_being_deleted or group.must_store_all:
            return None
        is_alive = group.keep_alive(member_id, epoch, client_id, client_host, self._now())
        return group.settings.heartbeat_interval_ms if is_alive else None

    def consumer_heartbeat(
        self,
        group_id: str,
        request: ConsumerHeartbeat,
        respond: Callable[[HeartbeatAnswer], None],
        may_see: Callable[[str], bool] | None = None,
    ) -> None:
        """`may_see`: the topics that a regular expression may match for this client. None: all."""
        error, message = self.check(group_id), ""
        held = self._groups.get(group_id)
        if error is ErrorCode.NONE and held is None and request.epoch != JOINING:
            error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}"
        if error is ErrorCode.NONE and held is not None and held.is_being_deleted:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        has_classic = held is not None and held.classic is not None and not held.classic.is_empty
        may_convert = request.epoch == JOINING and self._config.group_consumer_migration_policy in UPGRADES
        if error is ErrorCode.NONE and has_classic and not may_convert:
            error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is a group of classic members"
        if error is ErrorCode.NONE and not self._memory.has_room_for(_growth(held, request, self._topics.count)):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            respond(HeartbeatAnswer(error, message))
            return
        held = held or self._find_or_make(group_id)
        if held.consumer is not None:
            self._consumers.heartbeat(held, held.consumer, request, respond, may_see)
        else:
            self._convert(held, request, respond, may_see)
        self._forget_if_unused(held)

    def _consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        config, configs = self._config, {**defaults(self._config), **self.configs.of(group_id)}
        assignors = tuple(name.strip() for name in config.group_consumer_assignors.split(","))
        return ConsumerGroupSettings(
            int(configs[SESSION]),
            int(configs[HEARTBEAT]),
            config.group_consumer_max_size,
            assignors,
            config.group_consumer_regex_refresh_interval_ms,
        )

    def _group_config_changed(self, group_id: str) -> None:
        held = self._groups.get(group_id)
        if held is not None and held.consumer is not None:
            held.consumer.configure(self._consumer_settings(group_id), self._now())
            self._timers.schedule(held)

    def _convert(
        self,
        held: HeldGroup,
        request: ConsumerHeartbeat,
        respond: Callable[[HeartbeatAnswer], None],
        may_see: Callable[[str], bool] | None,
    ) -> None:
        """The first member makes the group one of the new kind."""
        classic = held.classic
        assert classic is not None
        try:
            group = (
                ConsumerGroup(held.group_id, self._consumer_settings(held.group_id))
                if classic.is_empty
                else to_new(classic, self._consumer_settings(held.group_id), self._topics, self._now())
            )
        except KafkaError as refusal:
            respond(HeartbeatAnswer(refusal.code, refusal.message))
            return
        before = [(key, None) for key in record_keys(held)]
        held.group = group
        if self._consumers.heartbeat(held, group, request, respond, may_see, before):
            self._act(held, classic.unload(ErrorCode.REBALANCE_IN_PROGRESS))
        else:
            held.group = classic

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: CommitResponder,
        producer: TransactionalProducer | None = None,
        *,
        knows_epochs: bool = True,
    ) -> None:
        """The commit is acknowledged when it is below the high watermark (INV-23). The caller has checked that the partitions exist.

        `knows_epochs`: see `ConsumerGroup.check_commit`. With a `producer`, the offsets count when its transaction is committed. The
        caller has awaited `verification`.
        """
        if producer is None:
            error = self._commit_error(group_id, member_id, instance_id, generation, knows_epochs=knows_epochs)
        else:
            error = self._transactional_commit_error(group_id, member_id, instance_id, generation, producer)
        if error is not ErrorCode.NONE:
            respond(dict.fromkeys(offsets, error))
            return
        length_max = self._config.offset_metadata_max_bytes
        ids = {topic: self._topic_id(topic) for topic in {tp.topic for tp in offsets}}
        fitting = {
            tp: CommittedOffset(*at[:-1], ids[tp.topic]) for tp, at in offsets.items() if len(at.metadata) <= length_max
        }
        errors = {tp: ErrorCode.OFFSET_METADATA_TOO_LARGE for tp in offsets if tp not in fitting}
        if deleted := self._deletions.topics:
            errors |= {tp: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for tp in fitting if tp.topic in deleted}
            fitting = {tp: at for tp, at in fitting.items() if tp not in errors}
        if not fitting:
            respond(errors)
            return
        held = self._groups.get(group_id)
        producer_id = None if producer is None else producer.producer_id
        if not self._memory.has_room_for(_commit_growth(held, fitting, producer_id)):
            respond({**errors, **dict.fromkeys(fitting, ErrorCode.COORDINATOR_NOT_AVAILABLE)})
            return
        held = held or self._find_or_make(group_id)
        pending = held.offsets.begin(fitting, producer_id)
        if producer_id is not None:
            held.owner.transactions.add(producer_id, group_id)
        self._write_commit(held, pending, fitting, errors, respond, producer)

    def _write_commit(
        self,
        held: HeldGroup,
        pending: PendingCommit,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: dict[TopicPartition, ErrorCode],
        respond: CommitResponder,
        producer: TransactionalProducer | None,
    ) -> None:
        def written(error: ErrorCode, log_offset: int) -> None:
            if error is ErrorCode.NONE:
                if producer is not None:
                    self.transactions.before_later_offsets(held, producer.producer_id, offsets)
                held.offsets.complete(pending, log_offset)
                self._groups.count(held)
            else:
                held.offsets.fail(pending)
                if producer is not None and not held.offsets.has_transaction(producer.producer_id):
                    held.owner.transactions.discard(producer.producer_id, held.group_id)
                self._forget_if_unused(held)
            respond({**errors, **dict.fromkeys(offsets, error)})

        self._writer.commit(held.owner.number, held.group_id, offsets, written, producer=producer)

    def _commit_error(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, knows_epochs: bool
    ) -> ErrorCode:
        error = self.check(group_id, may_be_empty=True)
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE:
            return error
        if held is None:
            return ErrorCode.ILLEGAL_GENERATION if generation >= 0 else ErrorCode.NONE
        if held.is_being_deleted:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = held.group
        if isinstance(group, ConsumerGroup):
            return group.check_commit(member_id, generation, knows_epochs=knows_epochs)
        return group.check_commit(member_id, instance_id, generation, self._now())

    def _transactional_commit_error(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, producer: TransactionalProducer
    ) -> ErrorCode:
        error = self.check(group_id)
        held, owned = self._groups.get(group_id), self.ownership.owner_of(group_id)
        if error is not ErrorCode.NONE or owned is None:
            return error or ErrorCode.NOT_COORDINATOR
        error = self.transactions.error_of_commit(owned, producer)
        if error is not ErrorCode.NONE:
            return error
        if held is None:
            return ErrorCode.UNKNOWN_MEMBER_ID if generation >= 0 else ErrorCode.NONE
        if held.is_being_deleted:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = held.group
        if isinstance(group, ConsumerGroup):
            error = group.check_commit(member_id, generation)
            return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
        return group.check_transactional_commit(member_id, instance_id, generation)

    def verification(self, group_id: str, producer: TransactionalProducer) -> Coroutine[Any, Any, ErrorCode] | None:
        """To be awaited before a transactional commit, which this broker refuses if the result is not NONE. None: nothing to await."""
        owned = self.ownership.owner_of(group_id)
        if owned is None or self.check(group_id) is not ErrorCode.NONE:
            return None  # the commit gets that error
        return self.transactions.verification(owned, producer)

    def transaction_completed(self, producer_id: int, markers: Mapping[int, int], is_commit: bool) -> None:
        """A transaction's markers are replicated: its offsets are committed, or dropped. `markers` has the log offset of the marker
        for each partition of `__consumer_offsets`."""
        for number, marker_offset in markers.items():
            owned = self.ownership.get(number)
            if owned is not None:
                self.transactions.completed(owned, EndedTransaction(producer_id, marker_offset, is_commit))

    def _transaction_ended(self, held: HeldGroup) -> None:
        self._groups.count(held)
        self._forget_if_unused(held)

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, require_stable: bool
    ) -> tuple[ErrorCode, dict[TopicPartition, FetchedOffset]]:
        """The offsets that are committed and replicated. An offset of an earlier topic of the same name does not count.

        `require_stable`: a partition with a pending commit, which may still fail, gets UNSTABLE_OFFSET_COMMIT.
        """
        error = self.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return error, {}
        held = self._groups.get(group_id)
        if held is None:
            return ErrorCode.NONE, dict.fromkeys(partitions)
        offsets = held.offsets
        found: dict[TopicPartition, FetchedOffset] = {tp: offsets.get(tp, self._topic_id) for tp in partitions}
        if require_stable:
            found |= {tp: ErrorCode.UNSTABLE_OFFSET_COMMIT for tp in found if offsets.is_pending(tp)}
        return ErrorCode.NONE, found

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """Whether a member may fetch offsets: in a group of the new kind it needs its epoch."""
        held = self._groups.get(group_id)
        if held is None or held.consumer is None:
            return ErrorCode.NONE
        return held.consumer.check_commit(member_id, member_epoch)

    def committed_partitions(self, group_id: str) -> tuple[ErrorCode, Mapping[str, Sequence[int]]]:
        """Topic -> its partitions with a committed offset."""
        error = self.check(group_id, may_be_empty=True)
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE or held is None:
            return error, {}
        return error, held.offsets.partitions(self._topic_id)

    def _topic_id(self, topic: str) -> bytes | None:
        """None: it is not known."""
        topic_id = self._metadata.topic_id(topic)
        return None if topic_id is None else topic_id.bytes

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """KIP-496. If the group has members, only offsets of topics that no member subscribes to are deleted."""
        error = self.check(group_id)
        held = self._groups.get(group_id)
        if error is ErrorCode.NONE and (held is None or held.is_being_deleted):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE or held is None:
            respond(error, {})
            return
        self._deletions.delete_offsets(held, partitions, respond)

    # -- for admins ---------------------------------------------------------------------------------------------------

    def list_groups(
        self, states: Iterable[str], types: Iterable[str]
    ) -> tuple[ErrorCode, Iterable[GroupListing | None]]:
        """State and type names match in any case; no names mean all groups. The iterable reads each group when it comes to it, and
        yields None for a group that does not match."""
        error = self.ownership.check_all()
        if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return error, []
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        listed = (
            listing
            if (not wanted_states or listing.state.lower() in wanted_states)
            and (not wanted_types or listing.group_type in wanted_types)
            else None
            for listing in map(_listing, self._groups)
        )
        return error, listed

    def describe(self, group_id: str) -> GroupDescription:
        """An unknown group is described as Dead, without an error."""
        error = self.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return GroupDescription(error, group_id, "")
        held = self._groups.get(group_id)
        if held is None or held.classic is None:
            message = f"Group {group_id} {'not found' if held is None else 'is not a classic group'}."
            return GroupDescription(error, group_id, GroupState.DEAD.value, message=message)
        return held.classic.describe()

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription:
        """A group of the new kind. GROUP_ID_NOT_FOUND: there is none, or it is a classic one."""
        error = self.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return ConsumerGroupDescription(error)
        held = self._groups.get(group_id)
        if held is None or held.consumer is None:
            message = f"Group {group_id} {'not found' if held is None else 'is not a consumer group'}."
            return ConsumerGroupDescription(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return held.consumer.describe()

    def delete_groups(self, group_ids: Sequence[str], respond: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Deletes groups without members. Responds when all tombstones are replicated or failed. The ids must be distinct."""
        errors: dict[str, ErrorCode] = {}

        def answer(group_id: str, error: ErrorCode) -> None:
            errors[group_id] = error
            if len(errors) == len(group_ids):
                respond(errors)

        for group_id in group_ids:
            error = self.check(group_id, may_be_empty=True)
            held = self._groups.get(group_id)
            if error is not ErrorCode.NONE:
                answer(group_id, error)
            elif held is None or held.is_being_deleted:
                answer(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            elif not held.group.is_empty:
                answer(group_id, ErrorCode.NON_EMPTY_GROUP)
            else:
                self._deletions.delete_group(held, partial(answer, group_id))
        if not group_ids:
            respond({})

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Deletes the offsets of all groups in these topics. Called by the metadata cache."""
        deleted = frozenset(topics)
        for owned in self.ownership:
            if not owned.is_loaded:
                owned.deleted_topics |= deleted
        self._deletions.topics_deleted(deleted)

    # -- moving with leadership (LAI-5) -------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        """Called by the replica manager, after it has answered pending appends."""
        self.ownership.leadership_changed(tp)

    def _partition_lost(self, owned: GroupsPartition) -> None:
        """Nothing acts for its groups from now on (`HeldGroup.is_held`). They are removed in slices, perhaps while the partition,
        gained again, is loaded."""
        groups = list(owned.groups.values())
        log.info("%s-%d, epoch %d: %d groups given up", OFFSETS_TOPIC, owned.number, owned.leader_epoch, len(groups))
        if groups:
            self._events.lost(owned, len(groups))
        self._sliced.run(self._giving_up(groups))

    def _giving_up(self, groups: list[HeldGroup]) -> Iterator[None]:
        """Answers all waiting members with NOT_COORDINATOR."""
        while groups:
            held = groups.pop()
            self._groups.remove(held)
            self._timers.drop(held)
            if held.classic is not None:
                self._act(held, held.classic.unload(ErrorCode.NOT_COORDINATOR))
            yield
            yield from held.offsets.clearing()

    def group_loaded(self, owned: GroupsPartition, stored: StoredGroup) -> None:
        """Called by PartitionLoading for each group of a partition, before `partition_loaded`."""
        group_id, metadata, offsets = stored
        listener = self._events.listener(group_id)
        group: AnyGroup
        if isinstance(metadata, ConsumerGroupImage):
            group = ConsumerGroup.restored(group_id, self._consumer_settings(group_id), metadata.changes(), self._now())
        elif metadata is None:
            group = Group(group_id, self._settings, on_transition=listener)
        else:
            group = Group.restored(group_id, metadata, self._settings, self._now(), on_transition=listener)
        held = HeldGroup(group_id, owned, group, offsets)
        self._groups.add(held)
        for producer_id in offsets.transactional.producers():
            owned.transactions.add(producer_id, group_id)
        self._timers.schedule(held)

    def partition_loaded(self, owned: GroupsPartition) -> None:
        owned.is_loaded = True
        self._events.loaded(owned)
        log.info("%s-%d: %d groups are served", OFFSETS_TOPIC, owned.number, len(owned.groups))
        self.transactions.loaded(owned)
        if owned.deleted_topics:
            self._deletions.topics_deleted(frozenset(owned.deleted_topics))
            owned.deleted_topics.clear()

    def _stored(self, held: HeldGroup, group: AnyGroup, number: int, error: ErrorCode) -> None:
        """Nothing follows if the group has become one of the other kind meanwhile, perhaps twice."""
        if held.is_held and held.group is group and held.classic is not None:
            self._act(held, held.classic.stored(number, error, self._now(), self._wall_ms()))

    def _act(self, held: HeldGroup, effects: Iterable[Effect]) -> None:
        if held.is_held:
            self._timers.schedule(held)
            self._groups.count(held)
        self._effects.run(held, effects)

    def _deleted(self, held: HeldGroup) -> None:
        """Removes the group: its tombstones are replicated, or the log never had a record of it."""
        self._groups.remove(held)
        self._timers.drop(held)
        if held.classic is not None:
            self._act(held, held.classic.kill())

    # -- time ---------------------------------------------------------------------------------------------------------

    def _due(self, held: HeldGroup) -> None:
        if not held.is_held:
            return
        if held.classic is not None:
            self._act(held, held.classic.advance(self._now(), self._wall_ms()))
        elif held.consumer is not None:
            self._consumers.advance(held, held.consumer)
        self._forget_if_unused(held)

    def _now(self) -> float:
        """Seconds that never go back, without the time in which this process stood still and received nothing."""
        self._lease.is_suspect()  # detects that the process stood still, if nothing has detected it yet
        # Not `monotonic`: the lease counts a suspension of the machine as time in which the process stood still.
        return self._clock.since_boot() - self._stood_still_s

    def _wall_ms(self) -> int:
        return self._clock.wall_ms()

    def _stood_still(self, seconds: float) -> None:
        self._stood_still_s += seconds


def _commit_growth(
    held: HeldGroup | None, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None
) -> int:
    if held is not None:
        return held.offsets.growth(offsets, producer_id)
    return GROUP_BYTES + GroupOffsets().growth(offsets)


def _growth(held: HeldGroup | None, request: ConsumerHeartbeat, topic_count: int) -> int:
    """Approximate bytes that a heartbeat adds at most: a new member, what it subscribes to, what its regular expression may match."""
    added = topics_bytes(request.topics or ())
    group = held.consumer if held is not None else None
    if request.regex and (group is None or request.regex not in group.subscriptions.resolved):
        matched = 1 + (
            group.subscriptions.unresolved if group is not None else 0
        )  # what others match is not counted yet
        added += matched * (REGEX_BYTES + MATCH_BYTES * topic_count)
    if request.epoch != JOINING:
        return added
    return MEMBER_BYTES + added + (GROUP_BYTES if held is None else 0)


def _listing(held: HeldGroup) -> GroupListing:
    kind = CLASSIC if held.classic is not None else CONSUMER
    return GroupListing(held.group_id, held.group.protocol_type or "", held.group.state.value, kind)
