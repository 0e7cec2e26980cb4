"""What the event log says of groups (RUN-3): their rebalances, and their moves to another coordinator."""

from __future__ import annotations

from collections.abc import Callable

from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.group.generations import TransitionListener
from broker.groups.group.states import Cause, GroupState
from broker.groups.held_groups import GroupsPartition, HeldGroup, HeldGroups
from broker.process.event_log import EventLog, LimitedEvents
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition


class GroupEvents:
    """Clients can cause rebalances at any rate, so their events are limited."""

    def __init__(self, events: EventLog, groups: HeldGroups, monotonic: Callable[[], float]) -> None:
        self._events = events
        self._limited = LimitedEvents(events, monotonic)
        self._groups = groups

    def listener(self, group_id: str) -> TransitionListener:
        """To be called after each transition of the group."""

        def transition(before: GroupState, cause: Cause, after: GroupState) -> None:
            held = self._groups.get(group_id)
            if cause is not Cause.UNLOADED and held is not None:
                self._limited.write(
                    "group_state",
                    group=group_id,
                    before=before.value,
                    after=after.value,
                    cause=cause.value,
                    generation=held.classic.generation if held.classic is not None else 0,
                )

        return transition

    def consumer_group_changed(self, held: HeldGroup, group: ConsumerGroup) -> None:
        """To be called after each change of a group of the new kind."""
        state = group.state.value
        if (state, group.epoch) != held.told:
            before, held.told = held.told, (state, group.epoch)
            self._limited.write(
                "group_state",
                group=held.group_id,
                before=before[0],
                after=state,
                cause=f"epoch {group.epoch}",
                generation=group.epoch,
            )

    def loaded(self, owned: GroupsPartition) -> None:
        """Partitions without groups are left out: most of the fifty have none."""
        self._write("groups_loaded", owned, len(owned.groups))

    def lost(self, owned: GroupsPartition, groups: int) -> None:
        self._write("groups_given_up", owned, groups)

    def _write(self, kind: str, owned: GroupsPartition, groups: int) -> None:
        if groups:
            tp = TopicPartition(OFFSETS_TOPIC, owned.number)
            self._events.write(kind, partition=str(tp), leader_epoch=owned.leader_epoch, groups=groups)
