"""Deletes whole groups, and offsets: by request, with their topic, or when they expire (CLI-2).

The tombstones are written first. When they are below the high watermark, the offsets and groups that they name are removed from
memory. If they cannot be written, nothing is removed. While a group is being deleted, nobody can join it or commit to it.

A group without members is deleted with its last offset, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.cluster.lease import LeadershipLease
from broker.coordination.time_slices import SlicedWork
from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroup, HeldGroups
from broker.groups.offsets_topic.writer import COMMIT_ERRORS, OffsetsWriter
from broker.process.clock import Clock
from broker.purgatory import TimerHandle, Timers
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

Done = Callable[[ErrorCode], None]


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
    ) -> None:
        self._config = config
        self._clock = clock
        self._timers = timers
        self._lease = lease
        self._writer = writer
        self._groups = groups
        self._sliced = sliced
        self._deleted = deleted
        self._timer: TimerHandle | None = None

    # -- by request ---------------------------------------------------------------------------------------------------

    def delete_offsets(
        self,
        held: HeldGroup,
        partitions: Sequence[TopicPartition],
        respond: Callable[[ErrorCode, dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        group = held.group
        errors: dict[TopicPartition, ErrorCode] = {}
        if group.state is not GroupState.EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                respond(ErrorCode.NON_EMPTY_GROUP, {})
                return
            errors = {tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for tp in partitions if group.is_subscribed(tp.topic)}
        removable = [tp for tp in partitions if tp not in errors]
        self._delete(
            held,
            removable,
            lambda error: respond(ErrorCode.NONE, {**errors, **dict.fromkeys(removable, error)}),
        )

    def delete_group(self, held: HeldGroup, respond: Done) -> None:
        """The caller has checked that the group has no members. Pending commits are deleted too: the tombstones follow them."""
        self._delete(held, held.offsets.with_pending(), respond, is_whole=True)

    def topics_deleted(self, topics: frozenset[str]) -> None:
        def act(held: HeldGroup) -> None:
            if held.is_held and held.owner.is_loaded and not held.is_being_deleted:
                self._delete(held, held.offsets.of_topics(topics), _quiet)

        self._sliced.for_each(self._groups, act)

    # -- by age -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._timer = self._timers.call_later(interval_s, self._expire)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if self._lease.is_suspect():
            self.start()
        else:
            self._sliced.for_each(self._groups, self._expire_in, self.start)

    def _expire_in(self, held: HeldGroup) -> None:
        if not held.is_held or held.is_being_deleted or not held.owner.is_loaded:
            return
        group = held.group
        is_empty = group.state is GroupState.EMPTY
        expired = held.offsets.expired(
            self._clock.wall_ms(),
            self._config.offsets_retention_minutes * 60_000,
            protocol_type=group.protocol_type,
            is_empty=is_empty,
            is_stable=group.state is GroupState.STABLE,
            state_since_ms=group.state_since_ms,
            subscribed_topics=group.subscribed_topics(),
        )
        if expired:
            log.info("group %.200s: %d offsets expire", held.group_id, len(expired))
        if expired or is_empty:
            self._delete(held, expired, _quiet)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _delete(
        self, held: HeldGroup, partitions: Sequence[TopicPartition], respond: Done, *, is_whole: bool = False
    ) -> None:
        """Deletes the group too if `is_whole`, or if it has no members, no pending ids and no other offsets."""
        committed = [tp for tp in partitions if is_whole or held.offsets.is_stored(tp)]
        deletes_group = is_whole or self._is_nothing_without(held, committed)
        if not committed and not deletes_group:
            respond(ErrorCode.NONE)
            return
        held.is_being_deleted = deletes_group

        def written(error: ErrorCode, log_offset: int) -> None:
            if held.is_held:
                if error is not ErrorCode.NONE:
                    if deletes_group:
                        held.is_being_deleted = False
                    log.warning("group %.200s: nothing is deleted: %s", held.group_id, error.name)
                else:
                    held.offsets.removed(committed, log_offset)
                    self._groups.count(held)
                    if deletes_group:
                        self._deleted(held)
            respond(COMMIT_ERRORS.get(error, error))

        # The log has a record of the group itself only after its first generation.
        with_group = deletes_group and held.group.generation > 0
        self._writer.remove(held.owner.number, held.group_id, committed, written, with_group=with_group)

    def _is_nothing_without(self, held: HeldGroup, partitions: Sequence[TopicPartition]) -> bool:
        group, offsets = held.group, held.offsets
        if group.state is not GroupState.EMPTY or group.next_deadline() is not None:
            return False
        return len(offsets.with_pending()) == len(set(partitions))


def _quiet(error: ErrorCode) -> None:
    """No client waits for the outcome. A failure is logged; the next round tries again to delete expired offsets."""
