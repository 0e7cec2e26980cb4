"""The page that lays two runs over each other (RPL-3). A is blue and B is orange, everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.charts import Chart, Line, View
from tools.pages.markup import Markup, banner, figure, page, section, table, text
from tools.pages.units import count, percent, quantity, seconds
from tools.private_files import write_anew
from tools.replay.checks import undelivered
from tools.replay.pages import files
from tools.replay.pages.checks import delivery_words
from tools.replay.pages.run_charts import column, fault_marks
from tools.replay.pages.run_page import fault_table, speeds

COLOURS = ("blue", "orange")
WIDTH, EDGE = 240, 8
"""Of the drawing of the confidence intervals, in pixels."""


def write_comparison_page(directory: Path) -> None:
    """Writes `report.html` beside `comparison.json`. Raises TraceError if that is missing or incomplete."""
    write_anew(directory / "report.html", comparison_page(files.read_comparison(directory)))


def comparison_page(comparison: Mapping[str, Any]) -> str:
    charts = list(charts_of(comparison))
    content = [
        verdict_banner(comparison),
        runs_section(comparison["runs"]),
        section(
            "Differences",
            "The bar is the confidence interval, the dot the value: A above, B below. A difference beyond noise is in words.",
            difference_table(comparison["rows"]),
        ),
        *(figure(chart) for chart in charts),
        *fault_sections(comparison),
    ]
    a, b = (run["name"] for run in comparison["runs"])
    return page(f"{a} and {b}", "Comparison of two replays", content, charts)


def verdict_banner(comparison: Mapping[str, Any]) -> Markup:
    """Red: B is worse, or one of the clusters did not deliver what it acknowledged."""
    rows = comparison["rows"]
    worse = [row for row in rows if row["worse"]]
    better = [row for row in rows if row["differs"] and not row["worse"]]
    delivered = [
        f"{letter}: {delivery_words(verdict)}." for letter, verdict in zip("AB", comparison["verdicts"], strict=True)
    ]
    if worse:
        words = f"B is worse in {len(worse)} of {len(rows)} figures"
    elif better:
        words = f"B is better in {len(better)} of {len(rows)} figures, worse in none"
    else:
        words = "No difference beyond noise"
    is_bad = worse or any(undelivered(verdict) for verdict in comparison["verdicts"])
    return banner(
        "bad" if is_bad else "good", words, [*changed("Worse", worse), *changed("Better", better), *delivered]
    )


def changed(word: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [f"{row['metric']} ({percent(row['change'])})" for row in rows]
    return [f"{word}: {', '.join(names)}."] if names else []


def runs_section(runs: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        (
            run_key(at, run["name"]),
            run["bootstrap_servers"],
            speeds(run["speeds"]),
            count(run["operations"]),
            seconds(run["seconds"]),
        )
        for at, run in enumerate(runs)
    ]
    return section("Runs", "", table(("run", "cluster", "speed", "operations", "took"), rows))


def run_key(at: int, name: str) -> Markup:
    return Markup(f'<span class="key {"ab"[at]}"><i></i>{"AB"[at]}: {text(name)}</span>')


def difference_table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    header = ("metric", "A", "B", "change", "", "")
    return table(
        header,
        [
            (
                row["metric"],
                quantity(row["a"], row["unit"]),
                quantity(row["b"], row["unit"]),
                percent(row["change"]),
                "worse" if row["worse"] else "better" if row["differs"] else "",
                intervals_drawn(row),
            )
            for row in rows
        ],
        marked=[at for at, row in enumerate(rows) if row["worse"]],
    )


def intervals_drawn(row: Mapping[str, Any]) -> Markup:
    """Both confidence intervals on one scale, as SVG."""
    pairs = [(row["a"], row["a_interval"]), (row["b"], row["b_interval"])]
    known = [value for value, _ in pairs if value is not None] + [
        end for _, interval in pairs for end in interval or ()
    ]
    if not known:
        return Markup("")
    low, high = min(known), max(known)
    place = _scale(low, high)
    parts = []
    for at, (value, interval) in enumerate(pairs):
        y = 8 + 12 * at
        if interval:
            parts.append(
                f'<line class="{"ab"[at]}" x1="{place(interval[0]):.1f}" x2="{place(interval[1]):.1f}" y1="{y}" y2="{y}" '
                'stroke-width="5" stroke-opacity=".4" stroke-linecap="round"/>'
            )
        if value is not None:
            parts.append(f'<circle class="{"ab"[at]}" cx="{place(value):.1f}" cy="{y}" r="3.5"/>')
    ends = " to ".join(quantity(end, row["unit"]) for end in (low, high))
    return Markup(
        f'<svg class="intervals" viewBox="0 0 {WIDTH} 28" role="img" aria-label="A and B between {text(ends)}">'
        f"<title>{text(ends)}</title>{''.join(parts)}</svg>"
    )


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Pixels of a value. Zero is at the left edge unless the values are close together."""
    begin = 0.0 if 0 <= low < high / 2 else low
    span = high - begin
    return lambda value: WIDTH / 2 if not span else EDGE + (WIDTH - 2 * EDGE) * (value - begin) / span


def charts_of(comparison: Mapping[str, Any]) -> Iterator[Chart]:
    over_time, runs = comparison["over_time"], comparison["runs"]
    names = [f"{letter}: {run['name']}" for letter, run in zip("AB", runs, strict=True)]
    marks = [
        mark
        for run, faults, colour in zip("AB", comparison["faults"], COLOURS, strict=True)
        for mark in fault_marks(faults, colour, run)
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
            for name, rows, colour in zip(names, over_time, COLOURS, strict=True)
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
        "Acknowledged by the cluster. The faults have the colour of their run.",
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
            for name, rows, colour in zip(names, below_all, COLOURS, strict=True)
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


def fault_sections(comparison: Mapping[str, Any]) -> Iterator[Markup]:
    for at, (run, faults) in enumerate(zip(comparison["runs"], comparison["faults"], strict=True)):
        if faults:
            yield section("Faults and what they cost", "", run_key(at, run["name"]), fault_table(faults))
