"""Deletes whole groups, and offsets: by request, with their topic, or when they expire (CLI-2).

The tombstones are written first, some at a time, with other requests in between. When they are below the high watermark, the offsets
and groups that they name are removed from memory. If they cannot be written, nothing is removed. While a group is being deleted, nobody
can join it or commit to it.

A group without members is deleted with its last offset, as in Kafka. Its own tombstone follows those of its offsets when these are
replicated: until then a client may still commit, and keep it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from broker.cluster.lease import LeadershipLease
from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.offsets import ExpiryRule, TopicId, expiry_rule
from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroup, HeldGroups
from broker.groups.offsets_topic import consumer_group_records
from broker.groups.offsets_topic.records import encode_group_key
from broker.groups.offsets_topic.writer import COMMIT_ERRORS, OffsetsWriter
from broker.process.clock import Clock
from broker.process.loop_budget import SlicedWork
from broker.purgatory import TimerHandle, Timers
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

OFFSETS_AT_ONCE = 200
"""Offsets whose tombstones are appended together. Their removal from memory is one step, too."""

Done = Callable[[ErrorCode], None]
Choose = Callable[[list[TopicPartition]], list[TopicPartition]]
"""Which of these partitions are to be deleted. Called just before their tombstones are appended."""


class GroupDeletions:
    """Calls `deleted(group)` for each group whose tombstones are replicated."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        lease: LeadershipLease,
        writer: OffsetsWriter,
        groups: HeldGroups,
        sliced: SlicedWork,
        deleted: Callable[[HeldGroup], None],
        topic_id: TopicId,
    ) -> None:
        self._config = config
        self._clock = clock
        self._timers = timers
        self._lease = lease
        self._writer = writer
        self._groups = groups
        self._sliced = sliced
        self._deleted = deleted
        self._topic_id = topic_id
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self.topics: Counter[str] = Counter()
        """Deleted topics whose offsets are being deleted. A commit of such a topic must wait: it was made again, and the offsets of the
        new topic stay."""

    # -- by request ---------------------------------------------------------------------------------------------------

    def delete_offsets(
        self,
        held: HeldGroup,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """All at once, so only some hundred."""
        group = held.group
        errors: dict[TopicPartition, ErrorCode] = {}
        if not group.is_empty:
            if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                respond(ErrorCode.NON_EMPTY_GROUP, {})
                return
            errors = {tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for tp in partitions if group.is_subscribed(tp.topic)}
        removable = [tp for tp in partitions if tp not in errors]
        deletion = self._deletion(
            held, lambda error: respond(ErrorCode.NONE, {**errors, **dict.fromkeys(removable, error)})
        )
        deletion.remove([tp for tp in removable if held.offsets.is_stored(tp)])
        deletion.all_are_asked()

    def delete_group(self, held: HeldGroup, respond: Done) -> None:
        """The caller has checked that the group has no members. Pending commits are deleted too: the tombstones follow them."""
        held.is_being_deleted = True
        deletion = self._deletion(held, respond, is_whole=True)
        self._sliced.run(deletion.steps(held.offsets.parts(OFFSETS_AT_ONCE), _all))

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Pending commits are deleted too."""
        self.topics.update(topics)
        self._sliced.run(self._delete_topics(frozenset(topics)))

    def _delete_topics(self, topics: frozenset[str]) -> Iterator[None]:
        try:
            for held in self._groups:
                if held.is_held and held.owner.is_loaded and not held.is_being_deleted:
                    parts = held.offsets.parts(OFFSETS_AT_ONCE, topics)
                    yield from self._deletion(held, _quiet).steps(parts, _all)
                yield
        finally:
            self.topics -= Counter(topics)

    # -- by age -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._is_closed:
            interval_s = self._config.offsets_retention_check_interval_ms / 1000
            self._timer = self._timers.call_later(interval_s, self._expire)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if self._lease.is_suspect():
            self.start()
        else:
            self._sliced.run(self._expire_all(), self.start)

    def _expire_all(self) -> Iterator[None]:
        for held in self._groups:
            may_look = held.is_held and held.owner.is_loaded and not held.is_being_deleted
            if may_look and _rule_of(held) is not None:
                yield from self._expire_in(held)
            yield

    def _expire_in(self, held: HeldGroup) -> Iterator[None]:
        count = 0

        def choose(some: list[TopicPartition]) -> list[TopicPartition]:
            nonlocal count
            rule = _rule_of(held)
            if rule is None or self._lease.is_suspect():
                return []
            retention_ms = self._config.offsets_retention_minutes * 60_000
            expired = held.offsets.expired(some, rule, self._clock.wall_ms(), retention_ms, self._topic_id)
            count += len(expired)
            return expired

        yield from self._deletion(held, _quiet).steps(held.offsets.parts(OFFSETS_AT_ONCE), choose)
        if count:
            log.info("group %.200s: %d offsets expire", held.group_id, count)

    def _deletion(self, held: HeldGroup, respond: Done, *, is_whole: bool = False) -> _Deletion:
        return _Deletion(self._writer, self._groups, self._deleted, held, respond, is_whole=is_whole)


class _Deletion:
    """Deletes offsets of one group, and the group too if `is_whole`, or if it then has no members, no pending ids and no offsets.

    `respond` is called once, when everything is replicated or something has failed. What was replicated stays deleted.
    """

    def __init__(
        self,
        writer: OffsetsWriter,
        groups: HeldGroups,
        deleted: Callable[[HeldGroup], None],
        held: HeldGroup,
        respond: Done,
        *,
        is_whole: bool,
    ) -> None:
        self._writer = writer
        self._groups = groups
        self._deleted = deleted
        self._held = held
        self._respond = respond
        self._is_whole = is_whole
        self._error = ErrorCode.NONE
        self._left = 1
        """Appends that are not replicated yet, and one more until all are made."""

    def steps(self, parts: Iterator[list[TopicPartition]], choose: Choose) -> Iterator[None]:
        """Deletes what `choose` finds in the parts, one part in each step."""
        held = self._held
        for some in parts:
            self.remove(choose(some))
            yield
            if not held.is_held or self._error is not ErrorCode.NONE or held.is_being_deleted is not self._is_whole:
                break
        self.all_are_asked()

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return

        def written(error: ErrorCode, log_offset: int) -> None:
            if error is ErrorCode.NONE and held.is_held:
                held.offsets.removed(partitions, log_offset)
                self._groups.count(held)
            self._one_is_done(error)

        held = self._held
        self._left += 1
        self._writer.remove(held.owner.number, held.group_id, partitions, written)

    def all_are_asked(self) -> None:
        """No `remove` follows."""
        self._one_is_done(ErrorCode.NONE)

    def _one_is_done(self, error: ErrorCode) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left:
            return
        held = self._held
        if self._error is ErrorCode.NONE and not held.owner.is_owned:
            self._error = ErrorCode.NOT_COORDINATOR
        if self._error is not ErrorCode.NONE or not held.is_held or not (self._is_whole or self._is_nothing_left()):
            self._end(self._error)
            return
        held.is_being_deleted = self._is_whole = True
        if held.group.is_stored:
            self._writer.remove(
                held.owner.number, held.group_id, (), lambda error, _: self._end(error), group_keys=record_keys(held)
            )
        else:
            self._end(ErrorCode.NONE)

    def _is_nothing_left(self) -> bool:
        held, group = self._held, self._held.group
        has_deadline = group.next_deadline() is not None
        is_unused = group.is_empty and not has_deadline and held.offsets.is_empty
        return is_unused and not held.is_being_deleted

    def _end(self, error: ErrorCode) -> None:
        held = self._held
        if error is not ErrorCode.NONE:
            log.warning("group %.200s: not everything is deleted: %s", held.group_id, error.name)
        if self._is_whole and held.is_held:
            if error is ErrorCode.NONE:
                self._deleted(held)
            else:
                held.is_being_deleted = False
        self._respond(COMMIT_ERRORS.get(error, error))


def record_keys(held: HeldGroup) -> list[bytes]:
    """The keys of the records that an empty group itself has in the log."""
    if not held.group.is_stored:
        return []
    if held.consumer is None:
        return [encode_group_key(held.group_id)]
    return [consumer_group_records.encode(held.group_id, change, 0)[0] for change in held.consumer.removal()]


def _all(partitions: list[TopicPartition]) -> list[TopicPartition]:
    return partitions


def _rule_of(held: HeldGroup) -> ExpiryRule | None:
    group = held.group
    return expiry_rule(
        protocol_type=group.protocol_type,
        is_empty=group.is_empty,
        is_stable=held.classic is None or held.classic.state is GroupState.STABLE,
        state_since_ms=group.state_since_ms,
        subscribed_topics=group.subscribed_topics(),
    )


def _quiet(error: ErrorCode) -> None:
    """No client waits for the outcome. A failure is logged; the next round tries again to delete expired offsets."""
