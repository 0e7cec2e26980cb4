"""Serves the groups of the new kind (KIP-848) that the coordinator holds.

    heartbeat -> `ConsumerGroup` (pure) -> changes -> one append -> below the high watermark -> the answer
                 it needs a new target  -> the steps to it, with other requests in between -> the answers that wait for it

An answer waits for all changes of its group that are in the log by then: nobody acts on what a failover could take back. If they cannot
be appended, the group goes back to what it was, and the member gets the error. If they are not replicated in time, it gets
COORDINATOR_NOT_AVAILABLE, and they stay.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial

from broker.cluster.metadata_cache import MetadataCache
from broker.groups.consumer_group import classic_members
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.conversion import to_classic
from broker.groups.consumer_group.messages import Change, ConsumerHeartbeat, HeartbeatAnswer, Waiting
from broker.groups.consumer_group.pace import Pace
from broker.groups.group.messages import (
    GroupMetadata,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from broker.groups.group_events import GroupEvents
from broker.groups.held_groups import ChangesWrite, HeldGroup, HeldGroups, WaitingRequest
from broker.groups.offsets_topic.consumer_group_records import Record, encode
from broker.groups.offsets_topic.records import encode_group_key, encode_group_value
from broker.groups.offsets_topic.writer import TOO_LARGE, OffsetsWriter
from broker.groups.timers import GroupTimers
from broker.process.loop_budget import SlicedWork
from broker.purgatory import Timers
from protocol.errors import ErrorCode, KafkaError
from protocol.regular_expressions import compiled
from protocol.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

MATCHES_MAX = 200_000
"""Topics that regular expressions match and that are remembered until a topic comes or goes: about 12 MB."""

RIGHTS_COST = 10
"""To ask for a right takes as long as ten things of a `Pace`."""

HeartbeatResponder = Callable[[HeartbeatAnswer], None]


class ConsumerGroups:
    """`now`: the coordinator's clock in seconds. `answer_within_s`: how long an answer waits for the replication of changes."""

    def __init__(
        self,
        writer: OffsetsWriter,
        groups: HeldGroups,
        events: GroupEvents,
        deadlines: GroupTimers[HeldGroup],
        timers: Timers,
        topics: ClusterTopics,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        answer_within_s: float,
        downgraded: Callable[[HeldGroup, GroupMetadata], None] | None,
        sliced: SlicedWork,
    ) -> None:
        """`downgraded` is called when a group has become a classic one, with its record. None: groups do not."""
        self._writer = writer
        self._groups = groups
        self._events = events
        self._deadlines = deadlines
        self._timers = timers
        self._topics = topics
        self._now = now
        self._wall_ms = wall_ms
        self._answer_within_s = answer_within_s
        self._downgraded = downgraded
        self._sliced = sliced

    def heartbeat(
        self,
        held: HeldGroup,
        group: ConsumerGroup,
        request: ConsumerHeartbeat,
        respond: HeartbeatResponder,
        may_see: Callable[[str], bool] | None = None,
        before: Iterable[Record] = (),
    ) -> bool:
        """`may_see`: see `SeenTopics`. `before`: records that go in front of the group's, tombstones of what it was.

        False: the group is as it was.
        """
        topics = self._topics if may_see is None else SeenTopics(self._topics, may_see)
        answer, changes = group.heartbeat(request, topics, self._now())
        if isinstance(answer, HeartbeatAnswer) and answer.error is not ErrorCode.NONE:
            respond(answer)
            return False
        if changes or group.must_store_all:
            error = self._store(held, group, changes, before)
            if error is not ErrorCode.NONE:
                respond(_refusal(error))
                return False
        if isinstance(answer, Waiting):
            held.waiting.append(WaitingRequest(answer.epoch, partial(self._answer, held, group, answer, respond)))
        elif held.last_write is None:
            respond(answer)
        else:
            self._when_stored(held, lambda error: respond(answer if error is ErrorCode.NONE else _refusal(error)))
        if changes:
            self._downgrade(held, group)
        if group.is_working:
            self._work_on(held, group)
        return True

    def _answer(
        self, held: HeldGroup, group: ConsumerGroup, waiting: Waiting, respond: HeartbeatResponder, error: ErrorCode
    ) -> None:
        """For a heartbeat that has waited for a new target."""
        if error is not ErrorCode.NONE:
            respond(_refusal(error))
            return
        answer, changes = group.answer(waiting, self._now())
        self._store_and_tell(
            held, group, changes, lambda error: respond(answer if error is ErrorCode.NONE else _refusal(error))
        )

    def _store_and_tell(
        self, held: HeldGroup, group: ConsumerGroup, changes: Sequence[Change], respond: Callable[[ErrorCode], None]
    ) -> None:
        error = ErrorCode.NONE
        if changes or group.must_store_all:
            error = self._store(held, group, changes)
        if error is ErrorCode.NONE:
            self._deadlines.schedule(held)
            self._when_stored(held, respond)
        else:
            respond(error)

    def advance(self, held: HeldGroup, group: ConsumerGroup) -> None:
        """Does what is due by now."""
        changes = group.advance(self._now())
        if changes and self._store(held, group, changes) is ErrorCode.NONE:
            self._downgrade(held, group)

    def _when_stored(self, held: HeldGroup, respond: Callable[[ErrorCode], None]) -> None:
        """Calls `respond` when all that the group has decided is below the high watermark, perhaps at once."""
        write = held.last_write
        if write is None:
            respond(ErrorCode.NONE)
            return
        write.waiting.append(respond)
        if write.timer is None:
            write.timer = self._timers.call_later(self._answer_within_s, self._is_late, write)

    @staticmethod
    def _is_late(write: ChangesWrite) -> None:
        write.timer = None
        write.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- a new target -------------------------------------------------------------------------------------------------

    def _work_on(self, held: HeldGroup, group: ConsumerGroup) -> None:
        if group.is_working and not held.is_worked_on:
            held.is_worked_on = True
            self._sliced.run(self._working(held, group))

    def _working(self, held: HeldGroup, group: ConsumerGroup) -> Iterator[None]:
        """The steps to a new target, and the answers that wait for it, until there is nothing to do. Anything may happen between two of
        them. If the partition is lost, or the group is deleted or converted, or if the log refuses a part, who waits is told."""
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            while held.waiting or group.is_working:
                error = _why_not(held, group)
                if error is ErrorCode.NONE:
                    error = self._step(held, group)
                if error is not ErrorCode.NONE:
                    break
                yield
        finally:
            held.is_worked_on = False
            if group.is_working:
                group.give_up_work()
            waiting, held.waiting = held.waiting, deque()
            for request in waiting:
                request.answer(error)

    def _step(self, held: HeldGroup, group: ConsumerGroup) -> ErrorCode:
        if held.waiting and (held.waiting[0].epoch <= group.target_epoch or not group.is_working):
            held.waiting.popleft().answer(ErrorCode.NONE)
            return ErrorCode.NONE
        changes = group.go_on()
        return self._store(held, group, changes) if changes else ErrorCode.NONE

    # -- members that use the classic protocol ------------------------------------------------------------------------

    def join(
        self, held: HeldGroup, group: ConsumerGroup, request: JoinRequest, respond: Callable[[JoinAnswer], None]
    ) -> None:
        answer, changes = classic_members.join(group, request, self._topics, self._now())
        error = ErrorCode.NONE
        if changes or group.must_store_all:
            error = self._store(held, group, changes)
        if error is not ErrorCode.NONE:
            respond(JoinAnswer(_refusal(error).error, request.member_id))
        elif isinstance(answer, Waiting):
            held.waiting.append(WaitingRequest(answer.epoch, partial(self._answer_join, held, group, answer, respond)))
        elif answer.error is not ErrorCode.NONE:
            respond(answer)
        else:
            self._tell_joined(held, group, answer, (), respond)
        if changes and error is ErrorCode.NONE:
            self._downgrade(held, group)
        self._work_on(held, group)

    def _answer_join(
        self,
        held: HeldGroup,
        group: ConsumerGroup,
        waiting: Waiting,
        respond: Callable[[JoinAnswer], None],
        error: ErrorCode,
    ) -> None:
        """For a JoinGroup that has waited for a new target."""
        if error is ErrorCode.NONE:
            self._tell_joined(held, group, *classic_members.answer_join(group, waiting, self._now()), respond)
        else:
            respond(JoinAnswer(_refusal(error).error, waiting.member.member_id))

    def _tell_joined(
        self,
        held: HeldGroup,
        group: ConsumerGroup,
        answer: JoinAnswer,
        changes: Sequence[Change],
        respond: Callable[[JoinAnswer], None],
    ) -> None:
        def stored(error: ErrorCode) -> None:
            respond(answer if error is ErrorCode.NONE else JoinAnswer(_refusal(error).error, answer.member_id))

        self._store_and_tell(held, group, changes, stored)

    def sync(
        self, held: HeldGroup, group: ConsumerGroup, request: SyncRequest, respond: Callable[[SyncAnswer], None]
    ) -> None:
        answer = classic_members.sync(group, request, self._topics, self._now())
        self._deadlines.schedule(held)
        self._when_stored(held, lambda error: respond(answer if error is ErrorCode.NONE else SyncAnswer(error)))

    def classic_heartbeat(
        self, held: HeldGroup, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        changes = group.look_again(self._topics)
        if changes or group.must_store_all:
            self._store(held, group, changes)
        self._work_on(held, group)
        error = classic_members.heartbeat(group, member_id, instance_id, generation, self._now())
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._deadlines.schedule(held)
        return error

    def leave(
        self,
        held: HeldGroup,
        group: ConsumerGroup,
        members: Sequence[LeavingMember],
        respond: Callable[[ErrorCode, list[ErrorCode]], None],
    ) -> None:
        errors, changes = classic_members.leave(group, members)
        error = self._store(held, group, changes) if changes else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            respond(error, [])
            return
        self._when_stored(held, lambda error: respond(error, errors if error is ErrorCode.NONE else []))
        if changes:
            self._downgrade(held, group)

    def _downgrade(self, held: HeldGroup, group: ConsumerGroup) -> None:
        """Makes it a classic group, if none of its members uses the new protocol any more."""
        if self._downgraded is None or held.consumer is not group or not group.has_only_classic_members:
            return
        now_ms = self._wall_ms()
        metadata = to_classic(group, self._topics, now_ms)
        if metadata is None:
            return
        records: list[Record] = [encode(held.group_id, change, now_ms) for change in group.removal()]
        try:
            records.append((encode_group_key(held.group_id), encode_group_value(metadata)))
        except KafkaError as error:
            log.error("group %.200s stays one of the new kind: %s", held.group_id, error)
            return
        if self._writer.store_changes(held.owner.number, records, _quiet) is ErrorCode.NONE:
            self._downgraded(held, metadata)
        else:
            group.must_store_all = True

    def topics_changed(self, changed: Iterable[TopicPartition]) -> None:
        """Called by the metadata cache after each update."""
        names = {tp.topic for tp in changed}
        has_moved = self._topics.look_again(names)
        for held in self._groups:
            group = held.consumer
            if group is not None and group.subscriptions.concern(names, has_moved=has_moved):
                group.subscriptions.is_stale = True

    def _store(
        self, held: HeldGroup, group: ConsumerGroup, changes: Sequence[Change], before: Iterable[Record] = ()
    ) -> ErrorCode:
        """The error, if nothing is stored; the group is as before then."""
        now_ms = self._wall_ms()
        if not changes:
            group.begin()  # so that nothing older is undone
        due = [*changes, *group.everything()] if group.must_store_all else changes  # `changes`: who is gone
        try:
            records = [*before, *(encode(held.group_id, change, now_ms) for change in due)]
        except Exception:
            log.exception("changes of group %.200s cannot be stored", held.group_id)
            group.undo(self._now())
            return ErrorCode.UNKNOWN_SERVER_ERROR
        earlier, write = held.last_write, ChangesWrite()
        held.last_write = write  # before the append: with a single replica, it is replicated at once
        # The log has the group as it was a while ago. Any mixture of that and of what follows is sound: a load lets a partition have one
        # holder, and nobody was told of what follows. It is not sound if the log has a group of the other kind.
        may_split = group.must_store_all and not before
        stored = partial(self._stored, held, write)
        error = self._writer.store_changes(held.owner.number, records, stored, may_split=may_split)
        if error is not ErrorCode.NONE:
            held.last_write = earlier
            group.undo(self._now())
            group.must_store_all = group.must_store_all or error is ErrorCode.REQUEST_TIMED_OUT
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.REQUEST_TIMED_OUT else error
        group.must_store_all = False
        self._deadlines.schedule(held)
        self._groups.count(held)
        self._events.consumer_group_changed(held, group)
        return ErrorCode.NONE

    def _stored(self, held: HeldGroup, write: ChangesWrite, error: ErrorCode) -> None:
        if write.timer is not None:
            write.timer.cancel()
        if held.last_write is write:
            held.last_write = None
        if error is ErrorCode.REBALANCE_IN_PROGRESS:  # not replicated for minutes
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if held.consumer is not None:
                held.consumer.must_store_all = True
        write.answer(error)


def _why_not(held: HeldGroup, group: ConsumerGroup) -> ErrorCode:
    """NONE: this coordinator may act for the group."""
    if not held.is_held:
        return ErrorCode.NOT_COORDINATOR
    is_other = held.group is not group or held.is_being_deleted
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_other else ErrorCode.NONE


def _refusal(error: ErrorCode) -> HeartbeatAnswer:
    if error in TOO_LARGE:
        words = f"the change needs a larger batch of records than {OFFSETS_TOPIC} takes (its max.message.bytes)"
        return HeartbeatAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, words)
    return HeartbeatAnswer(error)


def _quiet(error: ErrorCode) -> None:
    """Nobody waits for it: the members of a group that has become a classic one join again, and that is stored."""


class ClusterTopics:
    """The topics of this broker's metadata. A regular expression never matches Kafka's internal topics."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._known = set(metadata.topics())
        self._matched: dict[str, frozenset[str]] = {}
        self._matches = 0

    @property
    def count(self) -> int:
        return len(self._known)

    def find(self, name: str) -> tuple[bytes, int] | None:
        topic_id, count = self._metadata.topic_id(name), self._metadata.partition_count(name)
        return (topic_id.bytes, count) if topic_id is not None and count else None

    def name_of(self, topic_id: bytes) -> str | None:
        return self._metadata.topic_name(uuid.UUID(bytes=topic_id))

    def check(self, regex: str) -> None:
        """RE2's syntax. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
        if regex not in self._matched:
            compiled(regex)

    def matching(self, regex: str) -> Generator[None, None, frozenset[str]]:
        """The whole name must match."""
        found = self._matched.get(regex)
        if found is not None:
            return found
        pattern, matched, pace = compiled(regex), self._matched, Pace()
        names: set[str] = set()
        for name in self._metadata.topics():
            if name not in INTERNAL_TOPICS and pattern.fullmatch(name):
                names.add(name)
            if pace.has_done(1):
                yield
        found = frozenset(names)
        if matched is self._matched:
            if self._matches + len(found) >= MATCHES_MAX:
                matched.clear()
                self._matches = 0
            self._matches += 1 + len(found)
            matched[regex] = found
        return found

    def look_again(self, names: Iterable[str]) -> bool:
        """Whether one of these topics has come or gone since the last look."""
        has_moved = False
        for name in names:
            is_there = self._metadata.partition_count(name) > 0
            if is_there != (name in self._known):
                has_moved = True
                if is_there:
                    self._known.add(name)
                else:
                    self._known.discard(name)
        if has_moved:
            self._matched, self._matches = {}, 0  # another dict: what is being matched has the topics of before
        return has_moved


class SeenTopics:
    """Those that the client of a request may see, as far as a regular expression matches them. It was asked about topics that it names."""

    def __init__(self, topics: ClusterTopics, may_see: Callable[[str], bool]) -> None:
        self._topics = topics
        self._may_see = may_see

    def find(self, name: str) -> tuple[bytes, int] | None:
        return self._topics.find(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._topics.name_of(topic_id)

    def check(self, regex: str) -> None:
        self._topics.check(regex)

    def matching(self, regex: str) -> Generator[None, None, frozenset[str]]:
        matching = yield from self._topics.matching(regex)
        seen, pace = set(), Pace()
        for name in matching:
            if self._may_see(name):
                seen.add(name)
            if pace.has_done(RIGHTS_COST):
                yield
        return frozenset(seen)
