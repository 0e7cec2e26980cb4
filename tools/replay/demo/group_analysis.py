"""What a consumer group did during a replay, as plain numbers for summary and report.

A **pause** of the group corresponds to an outage for writers: a window in which the group read nothing of a partition although
at least one event was due. It starts at the previous read, or when the oldest waiting event became due if that was later, and
ends with the next read. A pause therefore includes the election of a new leader, the members' search for it, and a rebalance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tools.faults.script import DoneFault
from tools.replay.demo.group_member import GroupRead


class ProducedEvent(NamedTuple):
    """An acknowledged event; `scheduled` is when it was due, in seconds since 1970 UTC."""

    event_id: int
    partition: int
    scheduled: float


def analyse_group(
    facts: dict[str, Any],
    reads: Sequence[GroupRead],
    acknowledged: Sequence[ProducedEvent],
    faults: Sequence[DoneFault],
    began: float,
) -> dict[str, Any]:
    """`facts` are those of `GroupReader.finish`, `began` is the replay's start. Pauses, commits and rebalances after the
    kill count from the kill, pauses until the next fault. Without a kill they cover the whole replay."""
    kill = next((fault for fault in faults if fault.verb == "kill"), None)
    since = kill.at_ns / 1e9 if kill else began
    until = next((fault.at_ns / 1e9 for fault in faults if fault.at_ns / 1e9 > since), float("inf"))
    commits = sorted(at for member in facts["members"] for at in member["committed_at"])
    before, after = facts["coordinators"]
    read_events = {read.event_id for read in reads}
    pause, partition = longest_pause(reads, acknowledged, since, until)
    return {
        "group": facts["group"],
        "assignor": facts["assignor"],
        "members": [
            {
                "member": member["member"],
                "partitions": member["partitions"],
                "read": sum(read.member == member["member"] for read in reads),
                "commits": len(member["committed_at"]),
            }
            for member in facts["members"]
        ],
        "coordinator": {"before": before, "after": after, "was_killed": kill is not None and kill.broker == before},
        "read": len(reads),
        "read_again": len(reads) - len({(read.partition, read.offset) for read in reads}),
        "skipped": sum(event.event_id not in read_events for event in acknowledged),
        "lag": facts["lag"],
        "commits": len(commits),
        "failed_commits": sum(member["failed_commits"] for member in facts["members"]),
        "rebalances": rebalances(facts["members"], float("-inf")),
        "rebalances_after_kill": rebalances(facts["members"], since) if kill else 0,
        "pause_s": pause,
        "pause_partition": partition,
        "commit_gap_s": commit_gap(commits, since, until) if kill else None,
        "by_second": by_second(reads, commits, [member["member"] for member in facts["members"]], began),
    }


def rebalances(members: Iterable[dict[str, Any]], since: float) -> int:
    """The group's generations since that time: a member gets one assignment in each generation."""
    return max((sum(at >= since for at in member["assigned_at"]) for member in members), default=0)


def longest_pause(
    reads: Iterable[GroupRead], acknowledged: Iterable[ProducedEvent], since: float, until: float
) -> tuple[float, int | None]:
    """Seconds and partition of the longest pause that overlaps the period; (0, None) if nothing was read."""
    due = {event.event_id: event.scheduled for event in acknowledged}
    first_reads: dict[int, GroupRead] = {}
    for read in reads:
        known = first_reads.get(read.event_id)
        if read.event_id in due and (known is None or read.at < known.at):
            first_reads[read.event_id] = read
    by_partition: dict[int, list[GroupRead]] = defaultdict(list)
    for read in first_reads.values():
        by_partition[read.partition].append(read)
    longest: tuple[float, int | None] = (0.0, None)
    for partition, its_reads in sorted(by_partition.items()):
        for start, end in pauses([(due[read.event_id], read.at) for read in its_reads]):
            if end > since and start < until and end - start > longest[0]:
                longest = (end - start, partition)
    return longest


def pauses(waits: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The windows without a read, latest first, from (due, read) of one partition's events."""
    by_read = sorted(waits, key=lambda wait: wait[1])
    oldest_waiting = float("inf")
    found = []
    for number in range(len(by_read) - 1, -1, -1):
        due, read = by_read[number]
        oldest_waiting = min(oldest_waiting, due)
        before = by_read[number - 1][1] if number else oldest_waiting
        found.append((max(before, oldest_waiting), read))
    return found


def commit_gap(commits: Sequence[float], since: float, until: float) -> float | None:
    """The longest time between two successive commits that overlaps the period; None without commits."""
    gaps = [later - earlier for earlier, later in pairwise(commits) if later > since and earlier < until]
    return max(gaps, default=None)


def by_second(
    reads: Iterable[GroupRead], commits: Iterable[float], members: Sequence[int], began: float
) -> list[dict[str, Any]]:
    """Records read by each member (in the order of `members`) and commits, per second until the last read."""
    read_in = Counter((int(read.at - began), read.member) for read in reads if read.at >= began)
    committed_in = Counter(int(at - began) for at in commits if at >= began)
    last = max((second for second, _ in read_in), default=-1)
    return [
        {
            "second": second,
            "read": [read_in[second, member] for member in members],
            "commits": committed_in[second],
        }
        for second in range(last + 2)
    ]
