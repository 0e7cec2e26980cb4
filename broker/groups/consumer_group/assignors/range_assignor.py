"""`range`: each member has neighbouring partitions of each topic (Kafka's RangeAssignor on the broker). Pure.

Members are in the order of their instance ids, or member ids. Topics with equal numbers of partitions and the same subscribers are
co-partitioned: partition n of each of them goes to the same member.
"""

from __future__ import annotations

from broker.groups.consumer_group.assignors.problem import IdPartition, Owned, Problem


class RangeAssignor:
    name = "range"

    def assign(self, problem: Problem) -> dict[str, Owned]:
        found: dict[str, list[IdPartition]] = {member.member_id: [] for member in problem.members}
        for topic_id, count in problem.partitions.items():
            members = sorted(problem.subscribers(topic_id), key=lambda member: (member.order, member.member_id))
            if not members:
                continue
            each, more = divmod(count, len(members))
            start = 0
            for number, member in enumerate(members):
                end = start + each + (number < more)
                found[member.member_id] += (IdPartition(topic_id, partition) for partition in range(start, end))
                start = end
        return {member_id: frozenset(partitions) for member_id, partitions in found.items()}
