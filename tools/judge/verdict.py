"""The verdict of a run: what was found, what each fault cost, and the exit code. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.judge.findings import Finding
from tools.judge.judgement import Judged, judge
from tools.judge.kinds import HARMLESS, KINDS, LOST, MOVED, UNRECOVERED
from tools.judge.logs import Logs, Positions
from tools.judge.outages import ANY_PARTITION, IN_FLIGHT_S, Cost, Outage, cost_of, is_unrecovered, outages_of
from tools.judge.ownership import UNOWNED_S
from tools.judge.reports import ABORTED_TXN, ACKED, BEGUN, COMMITTED, COMMITTED_TXN, CONSUMED, PRODUCED, Report
from tools.judge.tables import Tables

CLEAN, FOUND, INCOMPLETE = 0, 1, 2
"""Exit codes: nothing was found; something was lost, duplicated, ...; the run is incomplete."""
MEMBER = "member "
"""How the role begins of a fault that hit a member of a consumer group."""
HEAL = "heal"
"""The verb of what ottla does at the end: it starts and resumes what is down."""
EXAMPLES = 20
"""Findings of a kind that are shown."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was tried. `at`: seconds since the start of the run. `error`: why it failed, or empty.

    `others`: further brokers that have the same rule about requests.
    """

    verb: str
    role: str
    broker: int | None
    at: float
    partitions: Sequence[tuple[str, int]]
    """What the broker led."""
    error: str = ""
    others: Sequence[int] = ()
    took_s: float = 0.0
    """Until it was carried out."""

    def __str__(self) -> str:
        return f"{self.verb} {self.role}"

    @property
    def who(self) -> str:
        """Whom it hit; empty for what ottla does at the end, and if the role names it."""
        if self.verb == HEAL or self.role.startswith(MEMBER):
            return ""
        if self.others:
            return f"brokers {', '.join(map(str, (self.broker, *self.others)))}"
        return "ZooKeeper" if self.broker is None else f"broker {self.broker}"


@dataclass(frozen=True, slots=True)
class Client:
    """A program that reported, judged. `name`: `your program`, or `ottla's load`."""

    name: str
    reports: Sequence[Report]
    broken: Sequence[str]
    judged: Judged
    outages: Sequence[Outage]

    @staticmethod
    def of(
        name: str,
        reports: Sequence[Report],
        logs: Logs,
        positions: Positions,
        end: float,
        *,
        is_finished: bool = False,
        broken: Sequence[str] = (),
        unowned_s: float = UNOWNED_S,
    ) -> Client:
        """`end`: when it was asked to stop, in seconds. `is_finished`, `unowned_s`: see `judge`."""
        tables = Tables.of(reports)
        judged = judge(tables, logs, positions, is_finished=is_finished, unowned_s=unowned_s)
        return Client(name, reports, broken, judged, outages_of(tables, logs, end))

    def counts(self) -> dict[str, int]:
        """Event -> number of reports."""
        found = Counter(report.event for report in self.reports)
        of_transactions = [event for event in (BEGUN, COMMITTED_TXN, ABORTED_TXN) if found[event]]
        return {event: found[event] for event in (PRODUCED, ACKED, CONSUMED, COMMITTED, *of_transactions)}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A kind of finding in what one client reported."""

    client: str
    kind: str
    findings: Sequence[Finding]
    is_failure: bool

    @property
    def count(self) -> int:
        return len(self.findings)

    @property
    def words(self) -> str:
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class FaultResult:
    """A fault with what it cost, and the number of findings of each kind that fall to it, by their time."""

    fault: Fault
    cost: Cost
    findings: Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """`incomplete`: why the run is incomplete. `notes`: other remarks for the reader."""

    seconds: float
    clients: Sequence[Client]
    judgements: Sequence[Judgement]
    faults: Sequence[FaultResult]
    incomplete: Sequence[str]
    notes: Sequence[str] = field(default_factory=tuple)
    is_interrupted: bool = False
    """Whether somebody has ended the run early."""

    @property
    def exit_code(self) -> int:
        if any(each.is_failure for each in self.judgements):
            return FOUND
        return INCOMPLETE if self.incomplete else CLEAN

    @property
    def headline(self) -> str:
        """`3 lost, 2 duplicates`, or that there is nothing."""
        failures = [each for each in self.judgements if each.is_failure]
        if failures:
            counts: Counter[str] = Counter()
            for each in failures:
                counts[each.kind] += each.count
            return ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind])
        return "not a whole verdict" if self.incomplete else "clean: 0 findings"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": {CLEAN: "clean", FOUND: "found", INCOMPLETE: "incomplete"}[self.exit_code],
            "exit_code": self.exit_code,
            "headline": self.headline,
            "seconds": round(self.seconds, 3),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "clients": [
                {"name": client.name, "reports": client.counts(), "broken_lines": list(client.broken)}
                for client in self.clients
            ],
            "findings": [
                {
                    "client": each.client,
                    "kind": each.kind,
                    "words": each.words,
                    "count": each.count,
                    "is_failure": each.is_failure,
                    "evidence": [asdict(finding) for finding in each.findings[:EXAMPLES]],
                }
                for each in self.judgements
            ],
            "faults": [
                {
                    **asdict(result.fault),
                    "writes_out_s": result.cost.writes_s,
                    "reads_out_s": result.cost.reads_s,
                    "recovered_s": result.cost.recovered_s,
                    "outages": [{**asdict(outage), "seconds": outage.seconds} for outage in result.cost.outages],
                    "findings": dict(result.findings),
                }
                for result in self.faults
            ],
        }


def conclude(
    seconds: float,
    clients: Sequence[Client],
    faults: Sequence[Fault],
    incomplete: Sequence[str],
    notes: Sequence[str] = (),
    *,
    allowed: Collection[str] = (),
    forbidden: Collection[str] = (),
) -> Verdict:
    """`seconds`: when the observation ended. `allowed` kinds are no failures; `forbidden` ones are, also those of HARMLESS."""
    harmless = (HARMLESS | set(allowed)) - set(forbidden)
    judgements = []
    for client in clients:
        for kind in KINDS:
            found = [finding for finding in client.judged.findings if finding.kind == kind]
            if kind == UNRECOVERED:
                found = [_unrecovered(outage) for outage in client.outages if is_unrecovered(outage)]
            if found:
                judgements.append(Judgement(client.name, kind, found, kind not in harmless))
    return Verdict(
        seconds,
        clients,
        judgements,
        _results(faults, clients, judgements, seconds),
        [*incomplete, *(problem for client in clients for problem in _problems(client))],
        [*notes, *(note for client in clients for note in _notes(client))],
    )


def _problems(client: Client) -> list[str]:
    broken = (
        [f"{client.name}: {len(client.broken)} broken report lines, the first: {client.broken[0]}"]
        if client.broken
        else []
    )
    problems = client.judged.problems
    some = (
        [f"{client.name}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")]
        if problems
        else []
    )
    acked = any(report.event in (ACKED, COMMITTED_TXN) for report in client.reports)
    produced = any(report.event == PRODUCED for report in client.reports)
    nothing = [f"{client.name}: nothing was acknowledged, so nothing could be lost"] if produced and not acked else []
    return broken + some + nothing


def _notes(client: Client) -> list[str]:
    expired = client.judged.expired
    return (
        [f"{client.name}: {expired:,} acknowledged records are not judged: their log starts behind them"]
        if expired
        else []
    )


def _unrecovered(outage: Outage) -> Finding:
    what = f"group {outage.group} read nothing" if outage.group else "nothing was acknowledged"
    words = f"{what} in the last {outage.seconds:.1f} s, although records waited"
    partition = None if outage.partition == ANY_PARTITION else outage.partition
    return Finding(UNRECOVERED, outage.began, "", outage.topic, partition, None, "", words)


def _results(
    faults: Sequence[Fault], clients: Sequence[Client], judgements: Sequence[Judgement], end: float
) -> list[FaultResult]:
    """Each fault has the time until the next one that was carried out."""
    times = sorted({fault.at for fault in faults if not fault.error})
    found: dict[float, Counter[str]] = {at: Counter() for at in times}
    for each in judgements:
        for finding in each.findings:
            at = _cause(times, finding)
            if at is not None:
                found[at][each.kind] += 1
    outages = sorted((outage for client in clients for outage in client.outages), key=lambda outage: outage.began)
    return [
        FaultResult(
            fault,
            cost_of([], 0, 0)
            if fault.error
            else cost_of(outages, fault.at, next((at for at in times if at > fault.at), end), fault.took_s),
            {} if fault.error else dict(found[fault.at]),
        )
        for fault in faults
    ]


def _cause(times: Sequence[float], finding: Finding) -> float | None:
    """A record is lost by the first fault after its acknowledgement, if there is one. Else the last fault before counts.

    The line of an acknowledgement may be read a moment after the fault that loses the record.
    """
    first = bisect_left(times, finding.at - IN_FLIGHT_S)
    if finding.kind in (LOST, MOVED) and first < len(times):
        return times[first]
    after = bisect_right(times, finding.at)
    return times[after - 1] if after else None


def rates(tables: Tables, seconds: float, bin_s: float) -> dict[str, list[float]]:
    """`acknowledged` and `consumed`: records per second in each `bin_s` seconds."""
    count = int(seconds / bin_s) + 1
    found = {"acknowledged": [0.0] * count, "consumed": [0.0] * count}
    for name, reports in (
        ("acknowledged", tables.acked.values()),
        ("consumed", (report for each in tables.consumed.values() for report in each)),
    ):
        for report in reports:
            at = int(report.at // bin_s)
            if 0 <= at < count:  # the load began before the program
                found[name][at] += 1 / bin_s
    return found
