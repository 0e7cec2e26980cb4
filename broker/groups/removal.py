"""What is taken out of groups: offsets that expire, that are deleted by request or with their topic, and whole groups (CLI-2).

Tombstones are written like everything else, and what they remove is gone from memory when they are below the high watermark;
if they cannot be written it stays. While a whole group is going nobody can join it or commit to it.

A group without members goes when its last offset does, as in Kafka: then nothing is left that anybody could ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.groups.group.offsets import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.states import GroupState
from broker.groups.held_groups import HeldGroup, HeldGroups
from broker.groups.offsets_topic.ownership import Surroundings
from broker.groups.offsets_topic.topic import COMMIT_ERRORS, OffsetsTopic
from broker.groups.time_slices import Slices
from broker.purgatory import TimerHandle
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

Done = Callable[[ErrorCode], None]


class GroupRemovals:
    """`kill` is called for each group that is gone."""

    def __init__(
        self,
        topic: OffsetsTopic,
        groups: HeldGroups,
        world: Surroundings,
        slices: Slices,
        kill: Callable[[HeldGroup], None],
    ) -> None:
        self._topic = topic
        self._groups = groups
        self._world = world
        self._slices = slices
        self._kill = kill
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
        self._remove(
            held,
            removable,
            lambda error: respond(ErrorCode.NONE, {**errors, **dict.fromkeys(removable, error)}),
        )

    def delete_group(self, held: HeldGroup, respond: Done) -> None:
        """The caller has seen that it has no members. Commits on their way to it go with it: they are before the tombstones."""
        self._remove(held, held.offsets.with_pending(), respond, is_whole=True)

    def topics_deleted(self, topics: frozenset[str]) -> None:
        def act(held: HeldGroup) -> None:
            if held.is_held and held.owner.is_loaded and not held.is_going:
                self._remove(held, held.offsets.of_topics(topics), _quiet)

        self._slices.each(self._groups, act)

    # -- by age -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        interval_s = self._world.config.offsets_retention_check_interval_ms / 1000
        self._timer = self._world.timers.call_later(interval_s, self._expire)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if self._world.lease.is_suspect():
            self.start()
        else:
            self._slices.each(self._groups, self._expire_in, self.start)

    def _expire_in(self, held: HeldGroup) -> None:
        if not held.is_held or held.is_going or not held.owner.is_loaded:
            return
        group = held.group
        is_empty = group.state is GroupState.EMPTY
        expired = held.offsets.expired(
            self._world.clock.wall_ms(),
            self._world.config.offsets_retention_minutes * 60_000,
            protocol_type=group.protocol_type,
            is_empty=is_empty,
            is_stable=group.state is GroupState.STABLE,
            state_since_ms=group.state_since_ms,
            subscribed_topics=group.subscribed_topics(),
        )
        if expired:
            log.info("group %.200s: %d offsets expire", held.group_id, len(expired))
        if expired or is_empty:
            self._remove(held, expired, _quiet)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _remove(
        self, held: HeldGroup, partitions: Sequence[TopicPartition], respond: Done, *, is_whole: bool = False
    ) -> None:
        """`is_whole`: the group goes in any case; else when it has no members, nobody is about to join, and no offset is left."""
        committed = [tp for tp in partitions if is_whole or held.offsets.log_offset(tp) is not None]
        goes = is_whole or self._is_nothing_without(held, committed)
        if not committed and not goes:
            respond(ErrorCode.NONE)
            return
        held.is_going = goes

        def written(error: ErrorCode, log_offset: int) -> None:
            if held.is_held:
                if error is not ErrorCode.NONE:
                    held.is_going = False
                    log.warning("group %.200s: nothing is removed: %s", held.group_id, error.name)
                else:
                    held.offsets.removed(committed, log_offset)
                    self._groups.count(held)
                    if goes:
                        self._kill(held)
            respond(COMMIT_ERRORS.get(error, error))

        # Of generation 0 the log has no record of the group itself.
        with_group = goes and held.group.generation > 0
        self._topic.remove(held.owner.number, held.group_id, committed, written, with_group=with_group)

    def _is_nothing_without(self, held: HeldGroup, partitions: Sequence[TopicPartition]) -> bool:
        group, offsets = held.group, held.offsets
        if group.state is not GroupState.EMPTY or group.next_deadline() is not None:
            return False
        return len(offsets.with_pending()) == len(set(partitions))


def _quiet(error: ErrorCode) -> None:
    """Nobody waits for it; a failure is in the log, and the next round tries again."""
