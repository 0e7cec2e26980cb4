"""`uniform`, the default: all members have equally many partitions, and as few as possible change their member. Pure.

1. Members keep what they had, up to their share.
2. What nobody has goes to the member with the fewest partitions among those that subscribe to its topic.
3. While a member has two partitions more than another one that subscribes to one of their topics, that one is moved.

If all members subscribe to the same topics, steps 1 and 2 end with shares that differ by at most one, and step 3 is not needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Iterator

from broker.groups.consumer_group.assignors.problem import IdPartition, Owned, Problem, Subscriber, Targets
from broker.groups.consumer_group.pace import Pace


class UniformAssignor:
    name = "uniform"

    def assign(self, problem: Problem) -> Generator[None, None, Targets]:
        if not problem.members:
            return {}
        if len({member.topics for member in problem.members}) == 1:
            return (yield from _shared_equally(problem))
        shares = _Shares(problem)
        yield from shares.prepare()
        yield from shares.keep()
        yield from shares.give_out()
        yield from shares.level()
        return (yield from shares.targets())


def _all_of(problem: Problem, topics: Collection[bytes]) -> Generator[None, None, list[IdPartition]]:
    found: list[IdPartition] = []
    pace = Pace()
    for topic_id, count in problem.partitions.items():
        if topic_id in topics:
            found += [IdPartition(topic_id, partition) for partition in range(count)]
            if pace.has_done(1 + count):
                yield
    return found


def _kept(problem: Problem, member: Subscriber) -> Owned:
    """What the member had, and may keep: usually all of it."""
    topics, counts = member.topics, problem.partitions
    if all(topic in topics and number < counts.get(topic, 0) for topic, number in member.before):
        return member.before
    return frozenset(each for each in member.before if each[0] in topics and each[1] < counts.get(each[0], 0))


def _shared_equally(problem: Problem) -> Generator[None, None, Targets]:
    """All members subscribe to the same topics. Some have one partition more than the others: those that had it before, then the first."""
    members = problem.in_order()
    every = yield from _all_of(problem, members[0].topics)
    each, more = divmod(len(every), len(members))
    shares: Targets = {}
    taken: set[IdPartition] = set()
    pace = Pace()
    for member in members:
        kept = _kept(problem, member)
        if not taken.isdisjoint(kept):  # two had it: no target has that, but nothing here needs to believe it
            kept -= taken
        if len(kept) > each:
            size = each + (more > 0)
            more -= more > 0
            if len(kept) > size:
                kept = frozenset(sorted(kept)[:size])
        shares[member.member_id] = kept
        taken |= kept
        if pace.has_done(1 + len(kept)):
            yield
    free = (partition for partition in every if partition not in taken)
    for member_id, kept in shares.items():
        missing = each - len(kept)
        if more > 0 and missing >= 0:
            missing += 1
            more -= 1
        if missing > 0:
            shares[member_id] = kept.union(next(free) for _ in range(missing))
        if pace.has_done(1 + max(0, missing)):
            yield
    return shares


class _Shares:
    """For members that subscribe to different topics. `of`: member id -> its partitions."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._members = {member.member_id: member for member in problem.in_order()}
        self._order = {member_id: number for number, member_id in enumerate(self._members)}
        self.of: dict[str, set[IdPartition]] = {member_id: set() for member_id in self._members}
        self._subscribers: dict[bytes, list[str]] = {}
        self._free: list[IdPartition] = []

    def prepare(self) -> Iterator[None]:
        pace = Pace()
        for member in self._members.values():
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(member.member_id)
            if pace.has_done(1 + len(member.topics)):
                yield
        self._free = yield from _all_of(self._problem, self._subscribers)

    def keep(self) -> Iterator[None]:
        """Step 1."""
        taken: set[IdPartition] = set()
        pace = Pace()
        for member_id, member in self._members.items():
            kept = _kept(self._problem, member) - taken
            self.of[member_id].update(kept)
            taken |= kept
            if pace.has_done(1 + len(kept)):
                yield
        self._free = [partition for partition in self._free if partition not in taken]

    def give_out(self) -> Iterator[None]:
        """Step 2."""
        heaps: dict[bytes, list[tuple[int, int, str]]] = {}
        pace = Pace()
        for partition in self._free:
            tried = 0
            heap = heaps.get(partition.topic_id)
            if heap is None:
                heap = heaps[partition.topic_id] = self._smallest_first(self._subscribers[partition.topic_id])
                if pace.has_done(len(heap)):
                    yield
            while True:
                size, place, member_id = heapq.heappop(heap)
                current = len(self.of[member_id])
                tried += 1
                if size == current:
                    break
                heapq.heappush(heap, (current, place, member_id))  # it has got partitions of other topics meanwhile
            self.of[member_id].add(partition)
            heapq.heappush(heap, (current + 1, place, member_id))
            if pace.has_done(tried):
                yield
        self._free = []

    def level(self) -> Iterator[None]:
        """Step 3, one topic after the other, until no topic has something to move. Each move makes two members more alike, so that ends."""
        sizes = [len(partitions) for partitions in self.of.values()]
        if max(sizes) - min(sizes) < 2:
            return
        holders: dict[bytes, dict[str, list[IdPartition]]] = {}
        pace = Pace()
        for member_id, partitions in self.of.items():
            for partition in sorted(partitions):
                holders.setdefault(partition.topic_id, {}).setdefault(member_id, []).append(partition)
            if pace.has_done(1 + len(partitions)):
                yield
        has_moved = True
        while has_moved:
            has_moved = False
            for topic_id, of_topic in holders.items():
                moved = yield from self._level_topic(topic_id, of_topic)
                has_moved = has_moved or moved
                yield

    def _level_topic(self, topic_id: bytes, holders: dict[str, list[IdPartition]]) -> Generator[None, None, bool]:
        """Moves partitions of the topic. `holders`: member id -> those that it has. Whether one was moved."""
        poor = self._smallest_first(self._subscribers[topic_id])
        rich = [(-size, place, member_id) for size, place, member_id in self._smallest_first(holders)]
        heapq.heapify(rich)
        has_moved = False
        pace = Pace()
        while rich:
            if pace.has_done(1):
                yield
            (size, _, giver), (least, _, taker) = rich[0], poor[0]
            if -size != len(self.of[giver]) or not holders[giver]:
                heapq.heappop(rich)  # it has changed, and is in the heap again
            elif least != len(self.of[taker]):
                heapq.heappop(poor)
            elif -size < least + 2:
                break
            else:
                moved = holders[giver].pop()
                self.of[giver].remove(moved)
                self.of[taker].add(moved)
                holders.setdefault(taker, []).append(moved)
                for member_id in (giver, taker):
                    size, place = len(self.of[member_id]), self._order[member_id]
                    heapq.heappush(poor, (size, place, member_id))
                    heapq.heappush(rich, (-size, place, member_id))
                has_moved = True
        return has_moved

    def targets(self) -> Generator[None, None, Targets]:
        targets: Targets = {}
        pace = Pace()
        for member_id, partitions in self.of.items():
            targets[member_id] = frozenset(partitions)
            if pace.has_done(1 + len(partitions)):
                yield
        return targets

    def _smallest_first(self, member_ids: Iterable[str]) -> list[tuple[int, int, str]]:
        """A heap of (number of partitions, place in the order, member id)."""
        heap = [(len(self.of[member_id]), self._order[member_id], member_id) for member_id in member_ids]
        heapq.heapify(heap)
        return heap
