"""What a test reported about its records, against what the logs hold in the end (docs/VERIFY.md)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ottla.records import BadId, first_id
from tools.cluster.processes import ClusterError
from tools.failures import AdminError
from tools.judge.kinds import KINDS, UNRECOVERED
from tools.judge.lines import lines_of
from tools.judge.reports import BrokenReport, Report, parse
from tools.judge.verdict import Client, Fault, conclude
from tools.testing.owned_cluster import OwnedCluster

NAME = "this test"
ALLOWED = (UNRECOVERED,)
"""A test need not go on until its clients are served again, as a program of `ottla verify run` does."""


class Verdicts:
    """The verdicts of an OwnedCluster. The methods in REQUESTS are what a test may ask."""

    REQUESTS: ClassVar = frozenset({"begin_verdict", "judge"})

    def __init__(self, cluster: OwnedCluster) -> None:
        self._cluster = cluster

    def begin_verdict(self) -> dict[str, Any]:
        """What `judge` needs of the moment at which the test begins: the ends of the logs, as [topic, partition, offset], and the time."""
        from tools.verify.reading import read_ends

        ends = read_ends(self._cluster.client_settings)
        return {"ends": [[*place, offset] for place, offset in ends.items()], "began_s": time.monotonic()}

    def judge(
        self,
        ends: Sequence[tuple[str, int, int]],
        began_s: float,
        reports: Sequence[Mapping[str, Any]],
        lines: Sequence[tuple[float, str]],
        id_places: Sequence[str],
        finished: bool,
        allow: Sequence[str],
        forbid: Sequence[str],
    ) -> dict[str, Any]:
        """Heals the cluster, reads everything back, and judges it. `reports`: the fields of each; `lines`: report lines with their times.

        What is in the logs below `ends` is not the test's. Times are monotonic seconds. Raises AdminError, ClusterError.
        """
        from confluent_kafka import KafkaException

        from tools.clients.librdkafka_errors import error_text
        from tools.verify.reading import read_back

        for kind in (*allow, *forbid):
            if kind not in KINDS:
                raise ClusterError(f"{kind!r} is no kind of finding; the kinds are {', '.join(KINDS)}")
        try:
            id_of = first_id(id_places)
        except BadId as problem:
            raise ClusterError(f"the place of the id: {problem}") from None
        said, broken = _reports(reports, lines, began_s)
        end_s = time.monotonic()
        faults = [
            Fault(
                done.verb,
                done.role,
                done.broker,
                done.at_ns / 1e9 - began_s,
                done.partitions,
                done.error,
                took_s=done.took_s,
            )
            for done in self._cluster.done
            if done.at_ns / 1e9 >= began_s
        ]
        self._cluster.heal()
        settings = self._cluster.client_settings
        try:
            ends_before = {(topic, partition): offset for topic, partition, offset in ends}
            logs, positions, incomplete = read_back(settings, said, ends_before, id_of, self._cluster.security)
        except KafkaException as problem:
            raise AdminError(f"nothing can be read back: {error_text(problem)}") from None
        if not said and not broken:
            incomplete.append("nothing was reported, so nothing is judged")
        client = Client.of(NAME, said, logs, positions, end_s - began_s, is_finished=finished, broken=broken)
        verdict = conclude(
            end_s - began_s,
            [client],
            faults,
            incomplete,
            allowed=(*ALLOWED, *allow),
            forbidden=forbid,
        )
        found: Counter[str] = Counter()
        for each in verdict.judgements:
            found[each.kind] += each.count
        return {
            "exit_code": verdict.exit_code,
            "headline": verdict.headline,
            "counts": client.counts(),
            "findings": dict(found),
            "text": "\n".join(lines_of(verdict)),
        }


def _reports(
    reports: Sequence[Mapping[str, Any]], lines: Sequence[tuple[float, str]], began_s: float
) -> tuple[list[Report], list[str]]:
    """In the order of their times, numbered; and the lines that are meant as reports and are none."""
    said = [Report(**fields) for fields in reports]
    broken = []
    for number, (at, line) in enumerate(lines, 1):
        try:
            report = parse(line, f"line {number}", 0, at)
        except BrokenReport as problem:
            broken.append(f"line {number}: {problem}: {line.strip()[:120]}")
            continue
        if report is not None:
            said.append(report)
    said.sort(key=lambda report: report.at)
    return [
        replace(report, order=order, line=report.line or str(order + 1), at=report.at - began_s)
        for order, report in enumerate(said)
    ], broken
