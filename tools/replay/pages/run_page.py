"""The page of one run (RPL-3): the verdict, the key figures, charts, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from tools.pages.checks import FAILED, NOT_VERIFIED, Check
from tools.pages.markup import Markup, banner, figure, folded, page, section, table, tiles
from tools.pages.units import NONE, count, milliseconds, moment, scaled, seconds
from tools.replay.checks import DELIVERY, NOT_READ, generator_limit, is_incomplete, run_checks, undelivered
from tools.replay.pages.run_charts import charts_of
from tools.replay.pages.words import (
    accepted_words,
    counted_from,
    evidence_rows,
    fault_sentence,
    key_figures,
    partition_name,
)

HALF = {"distribution", "lateness", "by_broker", "by_partition", "ramp", "ramp-latency"}
"""Charts that stand side by side where there is room."""
PARTITIONS_SHOWN = 6
"""In a fault's row."""
HALF_PX = 420
"""Bars that need more height than this have the whole width."""


def run_page(plan: Mapping[str, Any], analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    """The page. `verdict`: None if the records were not read back."""
    charts = charts_of(analysis)
    has_many_bars = any(chart.kind == "bars" and chart.height_px > HALF_PX for chart in charts)
    content = [
        verdict_banner(analysis, verdict),
        tiles(key_figures(analysis, verdict)),
        *(figure(chart, chart.id not in HALF or (has_many_bars and chart.kind == "bars")) for chart in charts),
        *changes_section(analysis),
        *tables(analysis),
    ]
    trace = PurePath(plan["trace"]).name or plan["trace"]  # without its directory: a page can be given away
    return page(f"Replay of {trace}", subtitle(plan, analysis), content, charts)


def changes_section(analysis: Mapping[str, Any]) -> Iterator[Markup]:
    """An analysis of an older ottla has none."""
    if changes := analysis.get("changes"):
        yield section(
            "Changes to the load",
            "The trace asked for something else.",
            table(("change",), [(each,) for each in changes]),
        )


def subtitle(plan: Mapping[str, Any], analysis: Mapping[str, Any]) -> str:
    began = datetime.fromtimestamp(analysis["began_ns"] / 1e9, UTC)
    return (
        f"{began:%Y-%m-%d %H:%M} UTC · {moment(analysis['seconds'])} · {speeds(plan['speeds'])} · "
        f"{count(len(analysis['tasks']))} tasks · {plan['bootstrap_servers']}"
    )


def speeds(values: Sequence[float]) -> str:
    if not values:
        return "as fast as possible, a closed loop"
    if len(values) == 1:
        return f"speed {values[0]:g}×"
    return f"speeds {values[0]:g}× to {values[-1]:g}×"


def verdict_banner(analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> Markup:
    """Red: a check failed. Yellow: something could not be verified. Green: all that was asked for holds."""
    checks = run_checks(analysis, verdict)
    failed = [check for check in checks if check.result == FAILED]
    unverified = [check for check in checks if check.result == NOT_VERIFIED]
    costs = [fault_sentence(fault) for fault in analysis["faults"]]
    if also := accepted_words(verdict):
        costs.insert(0, f"{also}.")
    sentences = [*map(sentence, failed), *map(sentence, unverified)]
    if verdict is None:
        words = f"Not known whether anything was lost: {NOT_READ}"
        return banner("bad" if failed else "warning", words, [*map(sentence, failed), *costs])
    state, words = ("bad" if failed else "warning"), "Not all was verified"
    if any(check.name in DELIVERY for check in failed):
        words = ", ".join(dict.fromkeys([f"{count(verdict['lost'])} lost", *undelivered(verdict)]))
    elif any(check.name == "acknowledged" for check in failed):
        words = "Nothing was acknowledged"
    elif failed:
        words = f"{'Not all was verified, and' if unverified else '0 lost, but'} not all went well"
    elif not unverified:
        kept = (
            "All records with acks=all that were acknowledged"
            if also
            else f"All {count(verdict['acknowledged'])} acknowledged records"
        )
        sentences = [
            f"{kept} were read back: once, in order and intact."
            if verdict["acknowledged"]
            else "The replay produced nothing."
        ]
        state, words = "good", "0 lost" if verdict["acknowledged"] else "All checks passed"
        if limit := generator_limit(analysis):
            state, words = "warning", "Generator limited"
            sentences.insert(0, f"{limit[:1].upper()}{limit[1:]}.")
    return banner(state, words, [*sentences, *costs], evidence(checks))


def sentence(check: Check) -> str:
    problem = str(check.reason)
    return f"{problem[:1].upper()}{problem[1:]}."


def evidence(checks: Sequence[Check]) -> Markup | None:
    found = [check for check in checks if check.evidence]
    return Markup(
        "".join(
            folded(f"Evidence: {check.name}", table(*evidence_rows(check.evidence)), is_open=True).html
            for check in found
        )
    )


def tables(analysis: Mapping[str, Any]) -> Iterator[Markup]:
    if analysis["faults"]:
        yield section("Faults and what they cost", "", fault_table(analysis["faults"]))
    if analysis["errors"]:
        yield section("Errors", "By kind, with the seconds of the first and the last.", error_table(analysis["errors"]))
    if analysis["outages"]:
        words = "The 100 longest. Delayed: operations that were due in the outage."
        yield section("Outages", words, outage_table(analysis["outages"]))
    if analysis["groups"]:
        words = (
            "Overdue: how late the latest answer to a fetch was, beyond the time for which it waits for records. "
            "Then the longest time of a member between two heartbeats or commits that succeeded."
        )
        yield section("Consumer groups", words, group_table(analysis["groups"]))
    yield section(
        "Latency", f"In percentiles, {counted_from(analysis)}, and from the sent time.", latency_table(analysis)
    )
    kinds = {
        "topic": "Topics",
        "broker": "Brokers",
        "partition": "Partitions",
        "client": "Clients, the 50 with the most bytes",
    }
    loads = [folded(title, load_table(analysis[f"by_{name}"], name)) for name, title in kinds.items()]
    yield section("Where the load went", "", *loads)
    yield section(
        "Tasks of the generator",
        "Their clocks are compared with the driver's at the start and at the end (drift); all times are the driver's.",
        task_table(analysis["tasks"]),
    )


Cell = Callable[[Mapping[str, Any]], str]


def of(name: str, shown: Callable[[Any], str] = str) -> Cell:
    """The cell of a row's field."""
    return lambda row: NONE if row.get(name) is None else shown(row[name])


def rows_table(
    columns: Sequence[tuple[str, Cell]],
    rows: Sequence[Mapping[str, Any]],
    is_bad: Callable[[Mapping[str, Any]], Any] = lambda row: False,
) -> Markup:
    """A table of (header, cell). `is_bad`: which rows are marked."""
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return table([name for name, _ in columns], cells, [at for at, row in enumerate(rows) if is_bad(row)])


def error_table(errors: Sequence[Mapping[str, Any]]) -> Markup:
    moments = [(name, of(f"{name}_second", moment)) for name in ("first", "last")]
    return rows_table(
        [("error", of("error")), ("op", of("op")), ("operations", of("operations", count)), *moments], errors
    )


def outage_table(outages: Sequence[Mapping[str, Any]]) -> Markup:
    columns = [
        ("partition", partition_name),
        ("from", of("from_second", moment)),
        ("to", of("to_second", moment)),
        ("lasted", of("seconds", seconds)),
        ("operations delayed", of("delayed", count)),
    ]
    return rows_table(columns, outages)


def group_table(groups: Sequence[Mapping[str, Any]]) -> Markup:
    counts = ("members", "joins", "rebalances", "commits", "failed_commits", "read", "read_again", "skipped")
    times = ("overdue", "without_heartbeat", "without_commit")
    columns = [
        ("group", of("group")),
        ("protocol", of("protocol")),
        *((name.replace("_", " "), of(name, count)) for name in counts),
        *((name.replace("_", " "), of(f"longest_{name}_s", seconds)) for name in times),
        ("", of("error")),
    ]
    return rows_table(columns, groups, lambda row: row["error"] or row["skipped"])


def task_table(tasks: Sequence[Mapping[str, Any]]) -> Markup:
    columns = [
        ("task", of("task", count)),
        ("operations", of("expected", count)),
        ("done", of("done", count)),
        ("last at", of("last_second", moment)),
        ("clock offset", of("clock_offset_ms", milliseconds)),
        ("uncertainty", of("clock_uncertainty_ms", milliseconds)),
        ("drift", of("clock_drift_ms", milliseconds)),
        ("cores", of("cores", "{:.2f}".format)),
        ("longest standstill", of("longest_still_ms", milliseconds)),
    ]
    return rows_table(columns, tasks, is_incomplete)


def fault_table(faults: Sequence[Mapping[str, Any]]) -> Markup:
    columns = [
        ("", of("number")),
        ("fault", lambda row: f"{row['verb']} {row['role']}"),
        ("broker", of("broker")),
        ("at", of("second", moment)),
        ("longest outage", of("outage_s", seconds)),
        ("partitions out", of("outages", partitions_out)),
        ("records delayed", of("delayed", count)),
        ("normal after", of("normal_after_s", seconds)),
        ("", lambda row: row["error"] or ""),
    ]
    numbered = [{**fault, "number": number} for number, fault in enumerate(faults, start=1)]
    return rows_table(columns, numbered, lambda row: row["error"])


def partitions_out(outages: Sequence[Mapping[str, Any]]) -> str:
    """The first few, with how long; `led`: by the broker that the fault hit."""
    names = [
        f"{partition_name(one)} {seconds(one['seconds'])}{' (led)' if one['led'] else ''}"
        for one in outages
        if one["seconds"]
    ]
    more = [f"{len(names) - PARTITIONS_SHOWN} more"] if len(names) > PARTITIONS_SHOWN else []
    return ", ".join(names[:PARTITIONS_SHOWN] + more)


PERCENTILES = {
    "p50": "50 %",
    "p90": "90 %",
    "p95": "95 %",
    "p99": "99 %",
    "p999": "99.9 %",
    "p9999": "99.99 %",
    "max": "slowest",
}


def latency_table(analysis: Mapping[str, Any]) -> Markup:
    shown = [
        (f"{op}, from {start}", analysis["latency_ms"][op][start])
        for op in ("produce", "fetch")
        for start in ("scheduled", "sent")
    ]
    shown += [(f"{op}, from scheduled", found["ms"]) for op, found in (analysis.get("transactions") or {}).items()]
    shown.append(("end to end, until the first read", (analysis["end_to_end"] or {}).get("ms")))
    shown.append(("lateness: sent after scheduled", analysis["lateness_ms"]))
    shown.append(("of it the generator: ready after scheduled", analysis["generator"]["late_ms"]))
    rows = [(name, *(milliseconds(found[key]) for key in PERCENTILES)) for name, found in shown if found is not None]
    return table(("", *PERCENTILES.values()), rows)


def load_table(rows: Sequence[Mapping[str, Any]], name: str) -> Markup:
    columns = [
        (name, partition_name if name == "partition" else of(name)),
        ("op", of("op")),
        *((each, of(each, count)) for each in ("operations", "failed", "records")),
        ("bytes", of("bytes", lambda value: scaled(value, "B"))),
        ("median", of("p50_ms", milliseconds)),
        ("99 %", of("p99_ms", milliseconds)),
    ]
    return rows_table(columns, rows)
