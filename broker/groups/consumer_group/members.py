"""The members of a consumer group, and what follows from them. Pure.

**No partition has two owners** (INV-24): `holders` has one member for each partition that somebody may still read.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.member import ConsumerMember, MemberState, topics_bytes


class ConsumerMembers:
    """`by_id`: all members. `holders`: partition -> the member that has it in `held`. `instances`: instance id -> member id.

    `names` and `regexes` count how many members subscribe to each. `undo` takes back what happened since `begin`.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, ConsumerMember] = {}
        self.holders: dict[IdPartition, str] = {}
        self.instances: dict[str, str] = {}
        self.names: Counter[str] = Counter()
        self.regexes: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        """Name -> how many classic members support it."""
        self.bytes = 0
        self._targets: dict[str, Owned] = {}
        self._there: Counter[int] = Counter()
        """Epoch -> how many members have reached it."""
        self._away = 0
        self.classic = 0
        """How many use the classic protocol."""
        self._before: dict[str, ConsumerMember | None] = {}
        self._targets_before: dict[str, Owned | None] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def target_of(self, member_id: str) -> Owned:
        return self._targets.get(member_id, NOTHING)

    def has_target(self, member_id: str) -> bool:
        return member_id in self._targets

    def are_at(self, epoch: int) -> bool:
        """Whether all that are there have reached this target."""
        return self._there[epoch] == len(self.by_id) - self._away

    # -- changes ------------------------------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        """Adds the member, or replaces what it was."""
        before = self.by_id.get(member.member_id)
        self._before.setdefault(member.member_id, before)
        self._change(before, member)

    def remove(self, member_id: str) -> None:
        """With all that it held, and its target."""
        member = self.by_id[member_id]
        self._before.setdefault(member_id, member)
        self._change(member, None)
        self.set_target(member_id, None)

    def set_target(self, member_id: str, target: Owned | None) -> None:
        """None: it has none."""
        self._targets_before.setdefault(member_id, self._targets.get(member_id))
        if target is None:
            self._targets.pop(member_id, None)
        else:
            self._targets[member_id] = target

    def begin(self) -> None:
        if self._before or self._targets_before:
            self._before, self._targets_before = {}, {}

    def undo(self) -> None:
        for member_id in self._before:
            if member_id in self.by_id:
                self._change(self.by_id[member_id], None)  # all of them first: they may hold what another one held
        for member in self._before.values():
            if member is not None:
                self._change(None, member)
        for member_id, target in self._targets_before.items():
            if target is None:
                self._targets.pop(member_id, None)
            else:
                self._targets[member_id] = target
        self.begin()

    def _change(self, before: ConsumerMember | None, member: ConsumerMember | None) -> None:
        """None: it is not there. What is the same before and after is left as it is: a member may hold, or name, thousands of things."""
        held_before = before.held if before is not None else NOTHING
        held = member.held if member is not None else NOTHING
        for partition in held_before - held:
            del self.holders[partition]
        if before is not None:
            del self.by_id[before.member_id]
            if before.instance_id is not None and self.instances.get(before.instance_id) == before.member_id:
                del self.instances[before.instance_id]
            self._count(before, -1)
        if member is not None:
            self.by_id[member.member_id] = member
            if member.instance_id is not None:
                self.instances[member.instance_id] = member.member_id
            self._count(member, 1)
            got = held - held_before
            assert self.holders.keys().isdisjoint(got), "a partition has two holders"
            self.holders.update(dict.fromkeys(got, member.member_id))
        topics_before = before.topics if before is not None else None
        topics = member.topics if member is not None else None
        if topics is not topics_before:
            self._count_names(topics_before or frozenset(), -1)
            self._count_names(topics or frozenset(), 1)

    def _count_names(self, names: frozenset[str], by: int) -> None:
        counts = self.names
        for name in names:
            count = counts[name] + by
            if count:
                counts[name] = count
            else:
                del counts[name]
        self.bytes += by * topics_bytes(names)

    def _count(self, member: ConsumerMember, by: int) -> None:
        if member.regex:
            _add(self.regexes, member.regex, by)
        if member.assignor is not None:
            _add(self.assignors, member.assignor, by)
        if member.classic is not None:
            self.classic += by
            for protocol in member.classic.protocols:
                _add(self.classic_protocols, protocol.name, by)
        if member.is_away:
            self._away += by
        elif member.state is MemberState.STABLE:
            _add(self._there, member.epoch, by)
        self.bytes += by * member.size()


Key = TypeVar("Key", str, int)


def _add(counter: Counter[Key], key: Key, by: int) -> None:
    """A count of zero is not kept."""
    counter[key] += by
    if not counter[key]:
        del counter[key]
