"""The charts of one run, from its analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.pages.charts import HEIGHT_PX, Chart, Line, Mark, Span, View
from tools.replay.pages.words import counted_from, partition_name

ENDS = ("start", "restart", "resume")
LABELLED_FAULTS = 4
"""With more faults than this, their marks have numbers instead of words."""
BARS = 30
ROW_PX = 26
LOW_PX = 230
FRAME_PX = 90
"""Height of a chart's axes, legend and margins."""
OPERATIONS = {"produce": "blue", "fetch": "orange"}


def charts_of(analysis: Mapping[str, Any]) -> list[Chart]:
    """Those that have something to show."""
    return [
        throughput(analysis),
        latency(analysis),
        *outages(analysis),
        distribution(analysis["distribution"]),
        *lateness(analysis),
        *failures(analysis),
        *lag(analysis),
        bars(analysis, "by_broker", "brokers", "Load of each broker"),
        bars(analysis, "by_partition", "partitions", "Load of each partition"),
        *ramp(analysis),
    ]


def throughput(analysis: Mapping[str, Any]) -> Chart:
    interval, views = analysis["interval_s"], []

    def rates(label: str, name: str, colour: str, *, is_dashed: bool = False) -> Line:
        return Line(label, [row[name] / interval for row in analysis["over_time"]], colour, is_dashed)

    for kind in ("op", "topic", "broker", "client"):
        lines = []
        for name, values in (analysis["series"].get(kind) or {}).items():
            label = broker_name(int(name)) if kind == "broker" and name.isdecimal() else name
            colour = "grey" if name == "others" else OPERATIONS.get(name, "")
            lines.append(Line(label, [value / interval for value in values], colour))
        if lines:
            views.append(View(f"by {kind}", "B/s", lines, is_stacked=True))
    produced = rates("acknowledged", "records", OPERATIONS["produce"])
    views.append(View("records", "records/s", [produced, rates("fetched", "fetched_records", OPERATIONS["fetch"])]))
    due = rates("due", "due", "grey", is_dashed=True)
    done = [rates("acknowledged", "acknowledged", "blue"), rates("failed", "failed", "red")]
    views.append(View("due and done", "operations/s", [due, *done]))
    return in_time(analysis, "throughput", "Throughput over time", views)


def latency(analysis: Mapping[str, Any]) -> Chart:
    lines = [
        Line("slowest", column(analysis["over_time"], "max_ms"), "grey", is_faint=True),
        Line("99 %", column(analysis["over_time"], "p99_ms"), "orange"),
        Line("median", column(analysis["over_time"], "p50_ms"), "blue"),
    ]
    spans = together([Span(one["from_second"], one["to_second"]) for one in analysis["outages"]])
    return in_time(
        analysis,
        "latency",
        "Latency of produce over time",
        [View("", "ms", lines, is_log=True)],
        note=f"Counted {counted_from(analysis)}; by the second of that time.{' Red bands: a partition is out.' if spans else ''}",
        spans=spans,
    )


def together(spans: Iterable[Span]) -> list[Span]:
    """The times in which at least one of the spans is."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda one: one.begin):
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def outages(analysis: Mapping[str, Any]) -> Iterable[Chart]:
    found = analysis["outages"]
    if not found:
        return
    worst: dict[str, float] = {}
    for one in found:
        name = partition_name(one)
        worst[name] = max(worst.get(name, 0.0), one["seconds"])
    names = sorted(sorted(worst, key=lambda name: -worst[name])[:BARS], reverse=True)
    spans = [
        Span(
            one["from_second"],
            one["to_second"],
            names.index(partition_name(one)),
            f"{one['seconds']:.2f} s, {one['delayed']:,} operations delayed",
        )
        for one in found
        if partition_name(one) in names
    ]
    yield in_time(
        analysis,
        "outages",
        "When each partition was out",
        [View("", "", (), categories=names)],
        kind="spans",
        spans=spans,
        height_px=FRAME_PX + ROW_PX * len(names),
        note="No operation on the partition was answered although one was ready to be sent, for at least 0.1 s.",
    )


def distribution(rows: Sequence[Mapping[str, Any]]) -> Chart:
    below_all = [row for row in rows if row["quantile"] < 1]
    lines = [
        Line("produce, from scheduled", column(below_all, "produce_scheduled_ms"), "blue"),
        Line("produce, from sent", column(below_all, "produce_sent_ms"), "blue", is_dashed=True),
        Line("fetch, from scheduled", column(below_all, "fetch_scheduled_ms"), "orange"),
    ]
    return Chart(
        "distribution",
        "quantiles",
        "Latency distribution",
        [View("", "ms", [line for line in lines if any(value is not None for value in line.values)], is_log=True)],
        x=[row["quantile"] for row in below_all],
        note="The share of operations that were faster. Each step to the right is ten times rarer.",
    )


def lateness(analysis: Mapping[str, Any]) -> Iterable[Chart]:
    """A closed loop has no schedule."""
    if analysis["loop"] == "closed":
        return
    rows, generator = analysis["over_time"], analysis["generator"]
    lines = [
        Line("99 % of operations left", column(rows, "late_p99_ms"), "blue"),
        Line("were ready", column(rows, "ready_p99_ms"), "purple", is_dashed=True),
    ]
    limit = f"The generator was the limit in {generator['limited']} of {generator['intervals']} intervals."
    yield in_time(
        analysis,
        "lateness",
        "Lateness",
        [View("", "ms", lines, is_log=True)],
        note=f"How long after its scheduled time an operation was ready, and left. {limit if generator['limited'] else ''} Between the "
        "lines, operations waited for the cluster: for a leader, a connection, or the batches in flight before them.",
    )


def failures(analysis: Mapping[str, Any]) -> Iterable[Chart]:
    rows = analysis["over_time"]
    if any(row["failed"] for row in rows):
        line = Line("failed", [row["failed"] / analysis["interval_s"] for row in rows], "red")
        yield in_time(
            analysis, "failures", "Failed produce operations", [View("", "operations/s", [line])], height_px=LOW_PX
        )


def lag(analysis: Mapping[str, Any]) -> Iterable[Chart]:
    by_topic: dict[str, dict[float, float]] = {}
    for row in analysis["lag"]:
        by_topic.setdefault(row["topic"], {})[row["second"]] = row["records"]
    if not by_topic:
        return
    seconds = sorted({row["second"] for row in analysis["lag"]})
    largest = sorted(by_topic, key=lambda topic: -max(by_topic[topic].values()))[:10]
    lines = [Line(topic, [by_topic[topic].get(second) for second in seconds]) for topic in largest]
    yield in_time(
        analysis,
        "lag",
        "Backlog (consumer lag)",
        [View("", "records", lines)],
        x=seconds,
        height_px=LOW_PX,
        note="Acknowledged, and not yet fetched by the slowest client that fetches the partition.",
    )


def bars(analysis: Mapping[str, Any], key: str, skewed: str, title: str) -> Chart:
    """Bytes per broker or partition, the largest above."""
    sums: dict[str, dict[str, float]] = {}
    for row in analysis[key]:
        name = partition_name(row) if key == "by_partition" else broker_name(row["broker"])
        of_name = sums.setdefault(name, dict.fromkeys(OPERATIONS, 0))
        of_name[row["op"]] = of_name.get(row["op"], 0) + row["bytes"]
    largest = sorted(sums, key=lambda name: (-sum(sums[name].values()), name))[:BARS]
    skew = (analysis["skew"].get(skewed) or {}).get("max_over_mean")
    notes = [] if skew is None else [f"The largest has {skew:.2f} times the mean."]
    if len(sums) > BARS:
        notes.append(f"The {BARS} largest of {len(sums):,}.")
    lines = [Line(op, [sums[name][op] for name in largest], colour) for op, colour in OPERATIONS.items()]
    return Chart(
        key,
        "bars",
        title,
        [View("", "B", lines, is_stacked=True, categories=largest)],
        note=" ".join(notes),
        height_px=FRAME_PX + ROW_PX * max(len(largest), 3),
    )


def ramp(analysis: Mapping[str, Any]) -> Iterable[Chart]:
    steps = sorted(analysis["ramp"] or (), key=lambda step: step["offered_per_second"])
    if not steps:
        return
    offered, knee = column(steps, "offered_per_second"), analysis["knee"]
    at_knee = [step["offered_per_second"] for step in steps if knee and step["speed"] == knee["speed"]]
    marks = [Mark(at, "knee", "green") for at in at_knee[:1]]
    achieved = Line("achieved", column(steps, "achieved_per_second"), "blue")
    yield Chart(
        "ramp",
        "rates",
        "Ramp: achieved against offered",
        [View("", "operations/s", [Line("offered", offered, "grey", is_dashed=True), achieved])],
        x=offered,
        marks=marks,
        note="The knee is the last step that the cluster kept up with.",
    )
    lines = [
        Line("latency, 99 %", column(steps, "p99_ms"), "orange"),
        Line("lateness, 99 %", column(steps, "late_p99_ms"), "purple", is_dashed=True),
    ]
    yield Chart(
        "ramp-latency",
        "rates",
        "Ramp: latency against offered",
        [View("", "ms", lines, is_log=True)],
        x=offered,
        marks=marks,
        note="If lateness rises with latency, the generator is the limit too.",
    )


def in_time(
    analysis: Mapping[str, Any],
    name: str,
    title: str,
    views: Sequence[View],
    *,
    kind: str = "time",
    x: Sequence[float] | None = None,
    note: str = "",
    spans: Sequence[Span] = (),
    height_px: int = HEIGHT_PX,
) -> Chart:
    """A chart over the seconds of the run, with its faults, and the intervals in which the generator was the limit."""
    length = analysis["interval_s"]
    bands = together([Span(row["second"], row["second"] + length) for row in analysis["over_time"] if row["limited"]])
    return Chart(
        name,
        kind,
        title,
        views,
        x=column(analysis["over_time"], "second") if x is None else x,
        note=f"{note} Purple bands: the generator was the limit.".lstrip() if bands else note,
        marks=fault_marks(analysis["faults"]),
        spans=spans,
        bands=bands,
        seconds=analysis["seconds"],
        interval=analysis["interval_s"] if x is None else 0.0,
        height_px=height_px,
    )


def fault_marks(faults: Sequence[Mapping[str, Any]], colour: str = "", run: str = "") -> list[Mark]:
    """Their places in time, after the name of the run if there are several.

    Without a colour, what ends a fault is green and the others are red.
    """
    in_words = len(faults) <= LABELLED_FAULTS
    return [
        Mark(
            fault["second"],
            f"{run} {fault_name(fault) if in_words else number}".strip(),
            colour or ("green" if fault["verb"] in ENDS else "red"),
        )
        for number, fault in enumerate(faults, start=1)
    ]


def fault_name(fault: Mapping[str, Any]) -> str:
    """Verb and broker; the role if nobody had it."""
    victim = fault["role"] if fault["broker"] is None else f"broker {fault['broker']}"
    return f"{fault['verb']} {victim}"


def broker_name(broker: int | None) -> str:
    return "no broker" if broker is None else f"broker {broker}"


def column(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    return [row.get(name) for row in rows]
