"""The coordinator of the groups whose partitions of `__consumer_offsets` this broker leads (CLI-2, LAI-5, INV-23, INV-24, BUG-25).

    request -> group_state (pure) -> effects: answers, and records for the log -> when replicated, back to group_state

Nothing here waits; all runs on the loop. A group exists here from the end of its partition's load until the partition is
lost or the group removed; whatever comes later for it (an outcome of an append, a deadline) finds `is_held` false and does nothing.

While the lease is suspect (this process stood still), or this broker is cut off from ZooKeeper and from its followers, nobody is
answered as if the groups were still here: another broker may coordinate them by now. Time that the process stood still does not
count against members, who could not be heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from broker.groups.effects import GroupEffects
from broker.groups.group.group import Group, needs_member_id
from broker.groups.group.limits import GROUP_BYTES
from broker.groups.group.members import Member
from broker.groups.group.messages import (
    GROUP_ID_BYTES_MAX,
    CommittedOffset,
    Effect,
    FetchedOffset,
    GroupDescription,
    GroupListing,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from broker.groups.group.offsets import GroupOffsets, PendingCommit
from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroup, HeldGroups, OwnedPartition
from broker.groups.offsets_topic.loading import StoredGroup
from broker.groups.offsets_topic.ownership import GroupEvents, GroupOwnership, Surroundings
from broker.groups.offsets_topic.topic import OffsetsTopic, OffsetsTopicSettings
from broker.groups.pending_ids import PendingIds
from broker.groups.removal import GroupRemovals
from broker.groups.time_slices import Slices
from broker.groups.timers import GroupTimers
from protocol.errors import ErrorCode
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

FULL_SAID_EVERY_S = 60.0

CommitResponder = Callable[[dict[TopicPartition, ErrorCode]], None]


class GroupCoordinator:
    """See the module. Made on the loop; `start` begins the expiry of offsets, `close` gives all groups up."""

    def __init__(self, world: Surroundings) -> None:
        config = world.config
        self._world = world
        self._settings = GroupSettings(
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
            config.group_initial_rebalance_delay_ms,
            config.group_max_size,
        )
        topic_settings = OffsetsTopicSettings(
            config.offsets_commit_timeout_ms, config.offsets_load_buffer_size, config.offsets_topic_compression_codec
        )
        self._topic = OffsetsTopic(world.replicas, world.clock, topic_settings)
        self._groups = HeldGroups()
        self._pending_ids = PendingIds()
        self._full_said_at = float("-inf")
        self._stood_still_s = 0.0
        self._timers = GroupTimers[HeldGroup](world.timers, self._now, world.lease.is_suspect, self._due)
        self._slices = Slices(world.timers, world.clock.monotonic)
        self._owned = GroupOwnership(
            world, self._topic, self._groups, self._slices, GroupEvents(self._take, self._loaded, self._unloaded)
        )
        self._removals = GroupRemovals(self._topic, self._groups, world, self._slices, self._kill)
        self._effects = GroupEffects(self._topic, self._stored, world.timers)
        self._is_closed = False
        world.lease.on_stall(self._stood_still)
        world.lease.on_trusted(self._timers.arm_again)

    def start(self) -> None:
        self._removals.start()

    async def close(self) -> None:
        """The broker stops: whoever waits is told NOT_COORDINATOR, and nothing is gained any more."""
        self._is_closed = True
        self._removals.close()
        await self._owned.close()

    # -- which groups -------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` whose leader is the group's coordinator."""
        return self._owned.partition_of(group_id)

    def check(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """May this broker answer for the group now? The empty id is of consumers that only keep offsets."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        if len(group_id) * 4 > GROUP_ID_BYTES_MAX and len(group_id.encode()) > GROUP_ID_BYTES_MAX:
            return ErrorCode.INVALID_GROUP_ID
        owned = self._owned.owner_of(group_id)
        if owned is None or self._world.lease.is_suspect() or self._owned.may_have_a_successor(owned):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if owned.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _find_or_make(self, group_id: str) -> HeldGroup:
        held = self._groups.get(group_id)
        if held is None:
            owned = self._owned.owner_of(group_id)
            assert owned is not None
            held = HeldGroup(group_id, owned, Group(group_id, self._settings), GroupOffsets())
            self._groups.add(held)
        return held

    def _forget_if_nothing(self, held: HeldGroup) -> None:
        """A group that never came about, and of which the log has nothing."""
        group = held.group
        never_was = group.state is GroupState.EMPTY and not group.generation and group.next_deadline() is None
        if never_was and held.is_held and held.offsets.is_empty and not held.is_going:
            self._groups.remove(held)
            self._timers.drop(held)

    @staticmethod
    def _growth(held: HeldGroup | None, request: JoinRequest) -> int:
        """By how many bytes a JoinGroup makes the groups larger. Pending ids have a limit of their own."""
        if held is not None:
            return held.group.growth(request)
        return 0 if needs_member_id(request) else GROUP_BYTES + Member.joining(request, request.new_member_id).size()

    def _has_memory_for(self, growth: int) -> bool:
        """`group.memory.max.bytes`. What does not grow goes on."""
        limit = self._world.config.group_memory_max_bytes
        if growth <= 0 or self._groups.bytes + growth <= limit:
            return True
        now = self._world.clock.monotonic()
        if now - self._full_said_at >= FULL_SAID_EVERY_S:
            self._full_said_at = now
            log.warning(
                "%d groups take %d bytes: new members and offsets are refused, group.memory.max.bytes is %d",
                len(self._groups),
                self._groups.bytes,
                limit,
            )
        return False

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        error = self.check(request.group_id)
        held = self._groups.get(request.group_id)
        if error is ErrorCode.NONE and held is None:
            error = self._error_without_group(request)
        if error is ErrorCode.NONE and held is not None and held.is_going:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is ErrorCode.NONE and not self._has_memory_for(self._growth(held, request)):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            respond(JoinAnswer(error, request.member_id))
            return
        held = held or self._find_or_make(request.group_id)
        ticket = self._effects.join_waits(respond)
        self._pending_ids.remove(held.group_id, request.member_id)
        self._act(held, held.group.join(request, ticket, self._now(), self._wall_ms()))
        if held.group.is_pending(request.new_member_id):
            self._pending_ids.add(held.group_id, request.new_member_id)
            self._forget_pending_ids()
        self._forget_if_nothing(held)

    def _forget_pending_ids(self) -> None:
        """Who comes back with one of these is told UNKNOWN_MEMBER_ID, and joins anew."""
        for group_id, member_id in self._pending_ids.too_many():
            held = self._groups.get(group_id)
            if held is not None:
                self._act(held, held.group.forget_pending(member_id, self._now(), self._wall_ms()))
                self._forget_if_nothing(held)

    def _error_without_group(self, request: JoinRequest) -> ErrorCode:
        settings = self._settings
        if not settings.min_session_ms <= request.session_timeout_ms <= settings.max_session_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.NONE

    def sync(self, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None:
        error = self.check(request.group_id)
        held = self._groups.get(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Who waited for whom is not stored: they have to join again, and need not look for another coordinator.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        elif error is ErrorCode.NONE and held is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if held is None or error is not ErrorCode.NONE:
            respond(SyncAnswer(error))
            return
        ticket = self._effects.sync_waits(respond)
        self._act(held, held.group.sync(request, ticket, self._now(), self._wall_ms()))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.check(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As Kafka: clients take that error for a bug. Whoever it is has a whole session left after the load.
            return ErrorCode.NONE
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE or held is None:
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        return held.group.heartbeat(member_id, instance_id, generation, self._now())

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], respond: Callable[[ErrorCode, list[ErrorCode]], None]
    ) -> None:
        """`respond` gets the error of all, and one for each of the members if that is NONE."""
        error = self.check(group_id)
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE:
            respond(error, [])
        elif held is None:
            respond(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
        else:
            errors, effects = held.group.leave(members, self._now(), self._wall_ms())
            respond(ErrorCode.NONE, errors)
            for leaving in members:
                self._pending_ids.remove(group_id, leaving.member_id)
            self._act(held, effects)
            self._forget_if_nothing(held)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        respond: CommitResponder,
    ) -> None:
        """Acknowledged when it is below the high watermark (INV-23). The partitions are known to exist."""
        error = self.check(group_id, may_be_empty=True)
        held = self._groups.get(group_id)
        if error is ErrorCode.NONE:
            if held is not None:
                error = held.group.check_commit(member_id, instance_id, generation, self._now())
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE if held.is_going else error
            elif generation >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
        if error is not ErrorCode.NONE:
            respond(dict.fromkeys(offsets, error))
            return
        length_max = self._world.config.offset_metadata_max_bytes
        fitting = {tp: at for tp, at in offsets.items() if len(at.metadata) <= length_max}
        errors = {tp: ErrorCode.OFFSET_METADATA_TOO_LARGE for tp in offsets if tp not in fitting}
        if not fitting:
            respond(errors)
            return
        if not self._has_memory_for(_commit_growth(held, fitting)):
            respond({**errors, **dict.fromkeys(fitting, ErrorCode.COORDINATOR_NOT_AVAILABLE)})
            return
        held = held or self._find_or_make(group_id)
        self._write_commit(held, held.offsets.begin(fitting), fitting, errors, respond)

    def _write_commit(
        self,
        held: HeldGroup,
        pending: PendingCommit,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: dict[TopicPartition, ErrorCode],
        respond: CommitResponder,
    ) -> None:
        def written(error: ErrorCode, log_offset: int) -> None:
            if error is ErrorCode.NONE:
                held.offsets.complete(pending, log_offset)
                self._groups.count(held)
            else:
                held.offsets.fail(pending)
                self._forget_if_nothing(held)
            respond({**errors, **dict.fromkeys(offsets, error)})

        self._topic.commit(held.owner.number, held.group_id, offsets, written)

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, require_stable: bool
    ) -> tuple[ErrorCode, dict[TopicPartition, FetchedOffset]]:
        """What is committed and replicated.

        `require_stable`: UNSTABLE_OFFSET_COMMIT where a commit is on its way, of which nobody knows yet whether it will count.
        """
        error = self.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return error, {}
        held = self._groups.get(group_id)
        if held is None:
            return ErrorCode.NONE, dict.fromkeys(partitions)
        offsets = held.offsets
        found: dict[TopicPartition, FetchedOffset] = {tp: offsets.get(tp) for tp in partitions}
        if require_stable:
            found |= {tp: ErrorCode.UNSTABLE_OFFSET_COMMIT for tp in found if offsets.is_pending(tp)}
        return ErrorCode.NONE, found

    def committed_partitions(self, group_id: str) -> tuple[ErrorCode, Mapping[str, Sequence[int]]]:
        """Topic -> the partitions of which `fetch_offsets` has an offset."""
        error = self.check(group_id, may_be_empty=True)
        held = self._groups.get(group_id)
        if error is not ErrorCode.NONE or held is None:
            return error, {}
        return error, held.offsets.partitions()

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """KIP-496. Of a group with members, only offsets of topics that none of them reads."""
        error = self.check(group_id)
        held = self._groups.get(group_id)
        if error is ErrorCode.NONE and (held is None or held.is_going):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE or held is None:
            respond(error, {})
            return
        self._removals.delete_offsets(held, partitions, respond)

    # -- for admins ---------------------------------------------------------------------------------------------------

    def list_groups(
        self, states: Iterable[str], types: Iterable[str]
    ) -> tuple[ErrorCode, Iterable[GroupListing | None]]:
        """Names of states and types are compared without case; none means all. Each group is looked at when it is its turn; None
        for one that is not wanted."""
        if self._is_closed or self._world.lease.is_suspect():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        is_loading = not all(owned.is_loaded for owned in self._owned)
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        listed = (
            listing
            if (not wanted_states or listing.state.lower() in wanted_states)
            and (not wanted_types or listing.group_type in wanted_types)
            else None
            for listing in map(_listing, self._groups)
        )
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE, listed

    def describe(self, group_id: str) -> GroupDescription:
        """A group that does not exist is Dead, without an error."""
        error = self.check(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return GroupDescription(error, group_id, "")
        held = self._groups.get(group_id)
        return held.group.describe() if held is not None else GroupDescription(error, group_id, GroupState.DEAD.value)

    def delete_groups(self, group_ids: Sequence[str], respond: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Answered when all their tombstones are replicated. Only groups without members go."""
        errors: dict[str, ErrorCode] = {}

        def told(group_id: str, error: ErrorCode) -> None:
            errors[group_id] = error
            if len(errors) == len(group_ids):
                respond(errors)

        for group_id in group_ids:
            error = self.check(group_id, may_be_empty=True)
            held = self._groups.get(group_id)
            if error is not ErrorCode.NONE:
                told(group_id, error)
            elif held is None or held.is_going:
                told(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
            elif held.group.state is not GroupState.EMPTY:
                told(group_id, ErrorCode.NON_EMPTY_GROUP)
            else:
                self._removals.delete_group(held, partial(told, group_id))
        if not group_ids:
            respond({})

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """The offsets of all groups in them go. Listens to the metadata cache."""
        gone = frozenset(topics)
        for owned in self._owned:
            if not owned.is_loaded:
                owned.deleted_topics |= gone
        self._removals.topics_deleted(gone)

    # -- moving with leadership (LAI-5) -------------------------------------------------------------------------------

    def leadership_changed(self, tp: TopicPartition) -> None:
        """Listens to the replica manager, which has answered those who waited for appends before."""
        self._owned.leadership_changed(tp)

    def _unloaded(self, groups: list[HeldGroup]) -> None:
        """Who waits is told; nothing is left that could act."""
        self._timers.forget(groups)
        for held in groups:
            self._act(held, held.group.unload(ErrorCode.NOT_COORDINATOR))

    def _take(self, owned: OwnedPartition, stored: StoredGroup) -> None:
        group_id, metadata, offsets = stored
        if metadata is None:
            group = Group(group_id, self._settings)
        else:
            group = Group.restored(group_id, metadata, self._settings, self._now())
        held = HeldGroup(group_id, owned, group, offsets)
        self._groups.add(held)
        self._timers.schedule(held)

    def _loaded(self, owned: OwnedPartition) -> None:
        owned.is_loaded = True
        log.info("%s-%d: %d groups are served", OFFSETS_TOPIC, owned.number, len(owned.groups))
        if owned.deleted_topics:
            self._removals.topics_deleted(frozenset(owned.deleted_topics))
            owned.deleted_topics.clear()

    def _stored(self, held: HeldGroup, number: int, error: ErrorCode) -> None:
        if held.is_held:
            self._act(held, held.group.stored(number, error, self._now(), self._wall_ms()))

    def _act(self, held: HeldGroup, effects: Iterable[Effect]) -> None:
        if held.is_held:
            self._timers.schedule(held)
            self._groups.count(held)
        self._effects.run(held, effects)

    def _kill(self, held: HeldGroup) -> None:
        """Its tombstones are replicated, or the log never had anything of it."""
        self._groups.remove(held)
        self._timers.drop(held)
        self._act(held, held.group.kill())

    # -- time ---------------------------------------------------------------------------------------------------------

    def _due(self, held: HeldGroup) -> None:
        if held.is_held:
            self._act(held, held.group.advance(self._now(), self._wall_ms()))
            self._forget_if_nothing(held)

    def _now(self) -> float:
        """Seconds in which this process was able to hear anybody."""
        self._world.lease.is_suspect()  # notes that it stood still, if it has not been noticed yet
        return self._world.clock.monotonic() - self._stood_still_s

    def _wall_ms(self) -> int:
        return self._world.clock.wall_ms()

    def _stood_still(self, seconds: float) -> None:
        self._stood_still_s += seconds


def _commit_growth(held: HeldGroup | None, offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    if held is not None:
        return held.offsets.growth(offsets)
    return GROUP_BYTES + GroupOffsets().growth(offsets)


def _listing(held: HeldGroup) -> GroupListing:
    return GroupListing(held.group_id, held.group.protocol_type or "", held.group.state.value)
