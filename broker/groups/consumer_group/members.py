"""The members of a consumer group, and what follows from them. Pure.

**No partition has two owners** (INV-24): `holders` has one member for each partition that somebody may still read.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.member import ConsumerMember, MemberState


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
        if before is not None:
            self._unlink(before)
        self._link(member)

    def remove(self, member_id: str) -> None:
        """With all that it held, and its target."""
        member = self.by_id[member_id]
        self._before.setdefault(member_id, member)
        self._unlink(member)
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
                self._unlink(self.by_id[member_id])
        for member in self._before.values():
            if member is not None:
                self._link(member)
        for member_id, target in self._targets_before.items():
            if target is None:
                self._targets.pop(member_id, None)
            else:
                self._targets[member_id] = target
        self.begin()

    def _link(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        self.by_id[member_id] = member
        for partition in member.held:
            holder = self.holders.setdefault(partition, member_id)
            assert holder == member_id, "a partition has two holders"
        if member.instance_id is not None:
            self.instances[member.instance_id] = member_id
        self._count(member, 1)

    def _unlink(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        del self.by_id[member_id]
        for partition in member.held:
            del self.holders[partition]
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        self._count(member, -1)

    def _count(self, member: ConsumerMember, by: int) -> None:
        for name in member.topics:
            _add(self.names, name, by)
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
