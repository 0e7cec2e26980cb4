"""`range`: each member has neighbouring partitions of each topic (Kafka's RangeAssignor on the broker). Pure.

Members are in the order of their instance ids, or member ids. Topics with equal numbers of partitions and the same subscribers are
co-partitioned: partition n of each of them goes to the same member.
"""

from __future__ import annotations

from collections.abc import Generator

from broker.groups.consumer_group.assignors.problem import IdPartition, Problem, Targets
from broker.groups.consumer_group.pace import Pace


class RangeAssignor:
    name = "range"

    def assign(self, problem: Problem) -> Generator[None, None, Targets]:
        members = problem.in_order()
        found: dict[str, list[IdPartition]] = {member.member_id: [] for member in members}
        subscribers: dict[bytes, list[str]] = {topic_id: [] for topic_id in problem.partitions}
        pace = Pace()
        for member in members:
            for topic_id in member.topics:
                if topic_id in subscribers:
                    subscribers[topic_id].append(member.member_id)
            if pace.has_done(1 + len(member.topics)):
                yield
        for topic_id, member_ids in subscribers.items():
            if not member_ids:
                continue
            each, more = divmod(problem.partitions[topic_id], len(member_ids))
            start = 0
            for number, member_id in enumerate(member_ids[: problem.partitions[topic_id]]):
                end = start + each + (number < more)
                found[member_id] += [IdPartition(topic_id, partition) for partition in range(start, end)]
                size, start = end - start, end
                if pace.has_done(1 + size):
                    yield
        targets: Targets = {}
        for member_id, partitions in found.items():
            targets[member_id] = frozenset(partitions)
            if pace.has_done(1 + len(partitions)):
                yield
        return targets
