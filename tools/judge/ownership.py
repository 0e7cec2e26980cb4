"""Who of a group owned which partition when, by what its members report (INV-24). Pure.

A member owns a partition from `assigned` to `revoked`, or until it has `left`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tools.judge.findings import Finding, finding
from tools.judge.kinds import OWNED_TWICE, UNOWNED
from tools.judge.logs import Place
from tools.judge.reports import ASSIGNED, LEFT, REVOKED, Report

UNOWNED_S = 45.0
"""Kafka's session time-out: after that time, the partitions of a member that died belong to others."""


def judge_ownership(reports: Iterable[Report], unowned_s: float = UNOWNED_S) -> list[Finding]:
    """`unowned_s`: how long a partition may have no owner while its group has members with partitions."""
    groups: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        if report.event in (ASSIGNED, REVOKED, LEFT):
            groups[report.group].append(report)
    return [found for of_group in groups.values() for found in _of_group(of_group, unowned_s)]


def _of_group(reports: Iterable[Report], unowned_s: float) -> Iterator[Finding]:
    owners: dict[Place, dict[str, Report]] = defaultdict(dict)
    """Partition -> each member that has it, with the report of its assignment."""
    free: dict[Place, Report] = {}
    """Partition without an owner -> what ended its last owner."""
    last_at = 0.0
    """When a member owned anything for the last time."""
    for report in reports:
        if any(owners.values()):
            last_at = report.at
        place = (report.topic, report.partition or 0)
        if report.event == ASSIGNED:
            released = free.pop(place, None)
            if released is not None and report.at - released.at > unowned_s:
                yield _unowned(place, released, report.at)
            others = [each for member, each in owners[place].items() if member != report.member]
            if others:
                other = others[0]
                words = f"{report.member} of group {report.group} got it; {other.member} has it since line {other.line}"
                yield finding(OWNED_TWICE, report, words)
            owners[place][report.member] = report
            last_at = report.at
            continue
        for each in [place] if report.event == REVOKED else list(owners):
            if owners[each].pop(report.member, None) is not None and not owners[each]:
                free[each] = report
    for place, released in free.items():
        if last_at - released.at > unowned_s:
            yield _unowned(place, released, last_at)


def _unowned(place: Place, released: Report, until: float) -> Finding:
    topic, partition = place
    words = f"no member of group {released.group} had it for {until - released.at:.1f} s, since {released.member} gave it up"
    return Finding(UNOWNED, released.at, released.line, topic, partition, None, "", words)
