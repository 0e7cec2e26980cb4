"""A consumer group of the new kind, as a read of its partition finds it (KIP-848). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broker.groups.consumer_group.assignors.problem import Owned
from broker.groups.consumer_group.member import ConsumerMember
from broker.groups.consumer_group.messages import (
    AssignmentChanged,
    Change,
    EpochChanged,
    MemberChanged,
    RegexResolved,
    TargetChanged,
    TargetEpochChanged,
)
from broker.groups.offsets_topic.consumer_group_records import ConsumerKey, ConsumerKeyKind


class ConsumerGroupImage:
    """`take` gets the records in the order of the log; `changes` is what they come to."""

    def __init__(self) -> None:
        self._epoch: EpochChanged | None = None
        self._target_epoch: TargetEpochChanged | None = None
        self._members: dict[str, ConsumerMember] = {}
        self._assignments: dict[str, ConsumerMember] = {}
        self._targets: dict[str, Owned] = {}
        self._resolved: dict[str, frozenset[str]] = {}

    @property
    def is_there(self) -> bool:
        return self._epoch is not None

    def take(self, change: Change | None) -> None:
        """None: a record that says nothing."""
        match change:
            case EpochChanged():
                self._epoch = change
            case TargetEpochChanged():
                self._target_epoch = change
            case MemberChanged(member_id, member) if member is not None:
                self._members[member_id] = member
            case AssignmentChanged(member_id, member) if member is not None:
                self._assignments[member_id] = member
            case TargetChanged(member_id, target) if target is not None:
                self._targets[member_id] = target
            case RegexResolved(regex, topics) if topics is not None:
                self._resolved[regex] = topics

    def remove(self, key: ConsumerKey) -> None:
        """A tombstone."""
        match key.kind:
            case ConsumerKeyKind.GROUP:
                self._epoch = None
            case ConsumerKeyKind.TARGET_EPOCH:
                self._target_epoch = None
            case ConsumerKeyKind.MEMBER:
                self._members.pop(key.name, None)
            case ConsumerKeyKind.ASSIGNMENT:
                self._assignments.pop(key.name, None)
            case ConsumerKeyKind.TARGET:
                self._targets.pop(key.name, None)
            case ConsumerKeyKind.REGEX:
                self._resolved.pop(key.name, None)
            case ConsumerKeyKind.TOPICS:
                pass

    def changes(self) -> Iterator[Change]:
        """Only those that say what is there. An AssignmentChanged has the whole member."""
        if self._epoch is not None:
            yield self._epoch
        if self._target_epoch is not None:
            yield self._target_epoch
        for regex, topics in self._resolved.items():
            yield RegexResolved(regex, topics)
        for member_id, member in self._members.items():
            at = self._assignments.get(member_id)
            if at is not None:
                member = replace(
                    member,
                    epoch=at.epoch,
                    previous_epoch=at.previous_epoch,
                    state=at.state,
                    assigned=at.assigned,
                    revoking=at.revoking,
                )
            yield AssignmentChanged(member_id, member)
            if member_id in self._targets:
                yield TargetChanged(member_id, self._targets[member_id])
