"""The page that lays the runs of two sides over each other (RPL-3). A is blue and B is orange, everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tools.pages.charts import Chart, Line, View
from tools.pages.checks import FAILED, NOT_VERIFIED, PASSED
from tools.pages.markup import Markup, banner, figure, page, section, table, text
from tools.pages.units import count, percent, quantity, seconds
from tools.replay.pages.checks import comparison_checks, side_names
from tools.replay.pages.run_charts import column, fault_marks
from tools.replay.pages.run_page import fault_table, speeds
from tools.replay.pages.words import difference_table

COLOURS = {"A": "blue", "B": "orange"}
WIDTH, EDGE = 240, 8
"""Of the drawing of the figures, in pixels."""


def comparison_page(comparison: Mapping[str, Any]) -> str:
    charts = list(charts_of(comparison))
    content = [
        verdict_banner(comparison),
        runs_section(comparison["runs"]),
        section(
            "Differences",
            "A dot is the figure of a run: those of A above, those of B below. The columns A and B are means. "
            "The interval contains the true change with a confidence of 95 %. A difference beyond noise is in words.",
            differences(comparison),
        ),
        *(figure(chart) for chart in charts),
        *fault_sections(comparison),
    ]
    return page(" and ".join(side_names(comparison)), "Comparison of replays", content, charts)


COLOUR_OF_RESULT = {PASSED: "good", NOT_VERIFIED: "warning", FAILED: "bad"}


def verdict_banner(comparison: Mapping[str, Any]) -> Markup:
    """Red: B is worse, or a run did not deliver what it acknowledged."""
    rows, checks = comparison["rows"], comparison_checks(comparison)
    better = [f"{row['metric']} ({percent(row['change'])})" for row in rows if row["differs"] and not row["worse"]]
    wrong = {result: [check for check in checks if check.result == result] for result in (FAILED, NOT_VERIFIED)}
    result = next((result for result, of in wrong.items() if of), PASSED)
    if result == FAILED:
        words = f"{len(wrong[FAILED])} of {len(checks)} checks failed"
    elif result == NOT_VERIFIED:
        words = "No statement"
    else:
        words = (
            f"B is better in {len(better)} of {len(rows)} figures, worse in none"
            if better
            else "No difference beyond noise"
        )
    reasons = [f"{check.name}: {check.reason}." for of in wrong.values() for check in of]
    return banner(
        COLOUR_OF_RESULT[result],
        words,
        [
            *reasons,
            *([f"Better: {', '.join(better)}."] if better else []),
            *(f"Different load: {each}." for each in comparison["unlike"]),
        ],
    )


def runs_section(runs: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        (
            run_key(run),
            run["bootstrap_servers"],
            speeds(run["speeds"]),
            count(run["operations"]),
            seconds(run["seconds"]),
        )
        for run in runs
    ]
    return section("Runs", "", table(("run", "cluster", "speed", "operations", "took"), rows))


def run_key(run: Mapping[str, Any]) -> Markup:
    side = run["side"]
    return Markup(f'<span class="key {side.lower()}"><i></i>{side}: {text(run["name"])}</span>')


def differences(comparison: Mapping[str, Any]) -> Markup:
    (header, shown), rows = difference_table(comparison), comparison["rows"]
    cells = [[*texts, figures_drawn(row)] for texts, row in zip(shown, rows, strict=True)]
    return table([*header, ""], cells, marked=[at for at, row in enumerate(rows) if row["worse"]])


def figures_drawn(row: Mapping[str, Any]) -> Markup:
    """The figures of all runs on one scale, as SVG."""
    sides = [[value for value in row[f"{side}_runs"] if value is not None] for side in "ab"]
    known = [value for side in sides for value in side]
    if not known:
        return Markup("")
    low, high = min(known), max(known)
    place = _scale(low, high)
    dots = [
        f'<circle class="{"ab"[at]}" cx="{place(value):.1f}" cy="{8 + 12 * at}" r="3.5" fill-opacity=".6"/>'
        for at, side in enumerate(sides)
        for value in side
    ]
    ends = " to ".join(quantity(end, row["unit"]) for end in (low, high))
    return Markup(
        f'<svg class="intervals" viewBox="0 0 {WIDTH} 28" role="img" aria-label="A and B between {text(ends)}">'
        f"<title>{text(ends)}</title>{''.join(dots)}</svg>"
    )


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Pixels of a value. Zero is at the left edge unless the values are close together."""
    begin = 0.0 if 0 <= low < high / 2 else low
    span = high - begin
    return lambda value: WIDTH / 2 if not span else EDGE + (WIDTH - 2 * EDGE) * (value - begin) / span


def charts_of(comparison: Mapping[str, Any]) -> Iterator[Chart]:
    over_time, runs = comparison["over_time"], comparison["runs"]
    names = [f"{run['side']}: {run['name']}" for run in runs]
    colours = [COLOURS[run["side"]] for run in runs]
    marks = [
        mark
        for run, faults in of_first_runs(comparison)
        for mark in fault_marks(faults, COLOURS[run["side"]], run["side"])
    ]

    end = max(run["seconds"] for run in runs)

    def lines(key: str, is_rate: bool = False) -> list[Line]:
        return [
            Line(
                name,
                [None if row[key] is None else row[key] / (interval(rows) if is_rate else 1) for row in rows],
                colour,
                x=column(rows, "second"),
            )
            for name, rows, colour in zip(names, over_time, colours, strict=True)
        ]

    def in_time(name: str, title: str, views: Sequence[View], note: str) -> Chart:
        return Chart(name, "time", title, views, note=note, marks=marks, seconds=end, interval=interval(over_time[0]))

    yield in_time(
        "throughput",
        "Throughput over time",
        [
            View("bytes", "B/s", lines("bytes", is_rate=True)),
            View("records", "records/s", lines("records", is_rate=True)),
            View("operations", "operations/s", lines("acknowledged", is_rate=True)),
            View("fetched", "B/s", lines("fetched_bytes", is_rate=True)),
            View("failed", "operations/s", lines("failed", is_rate=True)),
        ],
        "Acknowledged by the cluster. The faults are those of the first run of each side, in its colour.",
    )
    yield in_time(
        "latency",
        "Latency of produce over time",
        [
            View("99 %", "ms", lines("p99_ms"), is_log=True),
            View("median", "ms", lines("p50_ms"), is_log=True),
            View("slowest", "ms", lines("max_ms"), is_log=True),
            View("lateness, 99 %", "ms", lines("late_p99_ms"), is_log=True),
        ],
        "From the scheduled time, by the second in which an operation was due.",
    )
    below_all = [[row for row in rows if row["quantile"] < 1] for rows in comparison["distribution"]]

    def quantiles(key: str) -> list[Line]:
        return [
            Line(name, column(rows, key), colour, x=column(rows, "quantile"))
            for name, rows, colour in zip(names, below_all, colours, strict=True)
        ]

    yield Chart(
        "distribution",
        "quantiles",
        "Latency distribution",
        [
            View("produce", "ms", quantiles("produce_scheduled_ms"), is_log=True),
            View("produce, from sent", "ms", quantiles("produce_sent_ms"), is_log=True),
            View("fetch", "ms", quantiles("fetch_scheduled_ms"), is_log=True),
        ],
        note="The share of operations that were faster. Each step to the right is ten times rarer.",
    )


def interval(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of rows over time, in seconds."""
    return float(rows[1]["second"] - rows[0]["second"]) if len(rows) > 1 else 1.0


def of_first_runs(comparison: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]:
    """The first run of each side, and its faults."""
    seen = set()
    for run, faults in zip(comparison["runs"], comparison["faults"], strict=True):
        if run["side"] not in seen:
            seen.add(run["side"])
            yield run, faults


def fault_sections(comparison: Mapping[str, Any]) -> Iterator[Markup]:
    for run, faults in of_first_runs(comparison):
        if faults:
            yield section("Faults and what they cost", "", run_key(run), fault_table(faults))
