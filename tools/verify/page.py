"""The verdict as a page, and as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.judge.kinds import HARMLESS, KINDS
from tools.judge.lines import cost_words, evidence
from tools.judge.outages import SHOWN_S, Outage
from tools.judge.tables import Tables
from tools.judge.verdict import CLEAN, EXAMPLES, FOUND, Client, FaultResult, Judgement, Verdict, rates
from tools.pages.charts import Chart, Line, Mark, Span, View
from tools.pages.checks import Check, junit
from tools.pages.markup import Markup, banner, figure, folded, page, section, table, tiles
from tools.pages.units import NONE, count, moment, seconds

SPANS_SHOWN = 30
"""Partitions in the chart of outages: those with the longest."""
ROW_PX = 22
PARTITIONS_SHOWN = 4
"""In a fault's row."""
POINTS_MAX = 3000
"""Of a line."""
OUTAGES_MAX = 2000
"""In the chart: the longest."""


def page_of(verdict: Verdict, command: str) -> str:
    """`command`: the program, as it is typed."""
    charts = list(charts_of(verdict))
    faults = section("Faults", "What each one cost, and the findings that fall to it.", fault_table(verdict.faults))
    content = [
        banner_of(verdict),
        key_figures(verdict),
        *([faults] if verdict.faults else []),
        *(figure(chart) for chart in charts),
        *(evidence_of(judgement) for judgement in verdict.judgements),
        report_table(verdict.clients),
    ]
    subtitle = f"{moment(verdict.seconds)} · {command or 'no program: only the cluster'}"
    return page("ottla verify", subtitle, content, charts)


def banner_of(verdict: Verdict) -> Markup:
    state = {CLEAN: "good", FOUND: "bad"}.get(verdict.exit_code, "warning")
    costs = [
        f"At {moment(result.fault.at)}, {result.fault}: {result.fault.error or cost_words(result)}."
        for result in verdict.faults
    ]
    return banner(state, verdict.headline, [*verdict.incomplete, *costs, *verdict.notes])


def key_figures(verdict: Verdict) -> Markup:
    acked = sum(client.counts()["acked"] for client in verdict.clients)
    failures = sum(each.count for each in verdict.judgements if each.is_failure)
    writes = max((result.cost.writes_s for result in verdict.faults), default=None)
    reads = max((result.cost.reads_s for result in verdict.faults), default=None)
    return tiles(
        [
            ("Findings", count(failures), f"of {count(acked)} acknowledged records"),
            ("No writes", seconds(writes), "the longest, after a fault"),
            ("No reads", seconds(reads), "the longest, after a fault"),
            ("Faults", count(len(verdict.faults)), ""),
        ]
    )


def fault_table(faults: Sequence[FaultResult]) -> Markup:
    header = ("at", "fault", "hit", "no writes", "no reads", "recovered after", "partitions out", "findings")
    return table(
        header,
        [
            (
                moment(result.fault.at),
                str(result.fault),
                result.fault.error or result.fault.who,
                seconds(result.cost.writes_s),
                seconds(result.cost.reads_s),
                NONE if result.cost.recovered_s is None else seconds(result.cost.recovered_s),
                partitions_out(result.cost.outages),
                ", ".join(f"{count(number)} {kind}" for kind, number in result.findings.items()),
            )
            for result in faults
        ],
        marked=[at for at, result in enumerate(faults) if result.fault.error or result.cost.recovered_s is None],
    )


def partitions_out(outages: Sequence[Outage]) -> str:
    """The first few, with how long."""
    more = [f"{len(outages) - PARTITIONS_SHOWN} more"] if len(outages) > PARTITIONS_SHOWN else []
    shown = [f"{outage.name} {seconds(outage.seconds)}" for outage in outages[:PARTITIONS_SHOWN]]
    return ", ".join(shown + more)


def evidence_of(judgement: Judgement) -> Markup:
    rows = [
        (
            f"{finding.topic}{'' if finding.partition is None else f'-{finding.partition}'}",
            NONE if finding.offset is None else str(finding.offset),
            finding.id,
            finding.line,
            moment(finding.at),
            finding.words,
        )
        for finding in judgement.findings[:EXAMPLES]
    ]
    shown = f", the first {EXAMPLES}" if judgement.count > EXAMPLES else ""
    title = f"{judgement.client}: {count(judgement.count)} {judgement.kind} ({judgement.words}){shown}"
    found = table(
        ("partition", "offset", "id", "line", "at", ""), rows, marked=range(len(rows) if judgement.is_failure else 0)
    )
    return folded(title, found, is_open=judgement.is_failure)


def report_table(clients: Sequence[Client]) -> Markup:
    events = ("produced", "acked", "consumed", "committed")
    rows = [
        (client.name, *(count(client.counts()[event]) for event in events), count(len(client.broken)))
        for client in clients
    ]
    return folded("What was reported", table(("", *events, "broken lines"), rows))


def charts_of(verdict: Verdict) -> Iterator[Chart]:
    """Records per second of each client, and when which partition was out."""
    marks = [Mark(result.fault.at, str(result.fault)) for result in verdict.faults if not result.fault.error]
    for number, client in enumerate(verdict.clients):
        bin_s = max(SHOWN_S, verdict.seconds / POINTS_MAX)
        found = rates(Tables.of(client.reports), verdict.seconds, bin_s)
        yield Chart(
            f"rates-{number}",
            "time",
            f"{client.name}: records per second",
            [View("records", "records/s", [Line(name, values) for name, values in found.items()])],
            x=[at * bin_s for at in range(len(next(iter(found.values()))))],
            marks=marks,
            seconds=verdict.seconds,
            interval=bin_s,
        )
    outages = [outage for client in verdict.clients for outage in client.outages]
    if outages:
        yield outage_chart(outages, marks, verdict.seconds)


def outage_chart(outages: Sequence[Outage], marks: Sequence[Mark], until: float) -> Chart:
    worst = sorted(outages, key=lambda outage: -outage.seconds)[:OUTAGES_MAX]
    names = list(dict.fromkeys(outage.name for outage in worst))[:SPANS_SHOWN][::-1]  # the first row is at the bottom
    rows = {name: row for row, name in enumerate(names)}
    spans = [
        Span(max(outage.began, 0.0), outage.ended, rows[outage.name], seconds(outage.seconds))
        for outage in worst
        if outage.name in rows and outage.ended > 0
    ]
    return Chart(
        "outages",
        "spans",
        "Outages",
        [View("partitions", "", [], categories=names)],
        note=f"{SHOWN_S:g} s and longer: records waited, and none was acknowledged or, for a group, read.",
        marks=marks,
        spans=spans,
        seconds=until,
        height_px=120 + ROW_PX * len(names),
    )


def junit_of(verdict: Verdict) -> str:
    """A case for each kind that can fail, with all clients together, and one for the run itself."""
    checks = []
    for kind, words in KINDS.items():
        found = [each for each in verdict.judgements if each.kind == kind and each.is_failure]
        if not found and kind in HARMLESS:
            continue
        total = sum(each.count for each in found)
        checks.append(
            Check(
                kind,
                f"{count(total)} {kind}: {words}" if found else None,
                [
                    {"client": each.client, "evidence": evidence(finding)}
                    for each in found
                    for finding in each.findings[:EXAMPLES]
                ],
            )
        )
    checks.append(Check("complete", "; ".join(verdict.incomplete) or None))
    return junit("ottla.verify", checks, verdict.seconds)
