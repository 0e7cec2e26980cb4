"""The plots of a report as SVG text, drawn with matplotlib from an analysis."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# The colours of Okabe and Ito, which colour-blind people can tell apart; line styles differ too.
BLUE, TEAL, GREY, RED, GREEN, INK, FAINT = "#0072B2", "#00796B", "#B8C0C8", "#C04A00", "#2E7D32", "#1F2933", "#E3E7EB"
WIDTH_IN, HEIGHT_IN = 10.0, 3.4
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": "#8A94A0",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "ottla",
}
QUANTILE_TICKS = {0.0: "0", 0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}
MEMBER_LOOKS = ((BLUE, None), ("#E69F00", "//"), ("#56B4E9", ".."))
FAULT_LOOKS = {"kill": (RED, "--", "killed"), "return": (GREEN, ":", "started again")}


def svg_of(draw: Callable[[Figure, dict[str, Any]], None], analysis: dict[str, Any], height_in: float) -> str:
    """One figure as an `<svg>` element that scales with the page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        draw(figure, analysis)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 width="100%"', svg, count=1)


def throughput(figure: Figure, analysis: dict[str, Any]) -> None:
    """Events per second: due, acknowledged, read."""
    axes = figure.add_subplot()
    seconds = every_second(analysis["by_second"])
    at = [second["second"] for second in seconds]
    axes.fill_between(at, [second["due"] for second in seconds], step="post", color=GREY, alpha=0.55, label="due", lw=0)
    axes.step(
        at, [second["acknowledged"] for second in seconds], where="post", color=BLUE, lw=1.8, label="acknowledged"
    )
    axes.step(at, [second["read"] for second in seconds], where="post", color=TEAL, lw=1.2, ls="--", label="read")
    highest = max((max(second["due"], second["acknowledged"], second["read"]) for second in seconds), default=1)
    axes.set(xlabel="seconds since the start", ylabel="events per second", xlim=(0, None), ylim=(0, highest * 1.18))
    mark_faults(axes, analysis)
    legend_above(axes)


def group_reads(figure: Figure, analysis: dict[str, Any]) -> None:
    """Records read by each member of the consumer group, stacked, with a mark for each second with a commit."""
    axes = figure.add_subplot()
    group = analysis["group"]
    seconds = group["by_second"]
    at = [second["second"] for second in seconds]
    base = [0] * len(seconds)
    for place, member in enumerate(group["members"]):
        color, hatch = MEMBER_LOOKS[place % len(MEMBER_LOOKS)]
        top = [below + second["read"][place] for below, second in zip(base, seconds, strict=True)]
        label = f"member {member['member']}"
        axes.fill_between(
            at, base, top, step="post", facecolor=color, edgecolor="white", hatch=hatch, lw=0, label=label
        )
        base = top
    highest = max(base, default=1)
    committed = [second["second"] + 0.5 for second in seconds if second["commits"]]
    axes.plot(committed, [highest * 1.04] * len(committed), ls="", marker="|", color=INK, label="committed")
    axes.set(xlabel="seconds since the start", ylabel="records per second", xlim=(0, None), ylim=(0, highest * 1.25))
    mark_faults(axes, analysis)
    legend_above(axes)


def latency_over_time(figure: Figure, analysis: dict[str, Any]) -> None:
    """Latency percentiles of the events due in each second."""
    axes = figure.add_subplot()
    seconds = every_second(analysis["by_second"])
    at = [second["second"] + 0.5 for second in seconds]
    for name, look in (
        ("max_ms", {"color": GREY, "lw": 1.2, "label": "slowest"}),
        ("p99_ms", {"color": RED, "lw": 1.4, "ls": "--", "label": "99 %"}),
        ("p50_ms", {"color": BLUE, "lw": 1.8, "label": "median"}),
    ):
        values = [float("nan") if second[name] is None else second[name] for second in seconds]
        axes.plot(at, values, marker=".", markersize=4, **look)
    axes.set(xlabel="seconds since the start (when the event was due)", ylabel="latency, ms", xlim=(0, None))
    logarithmic(axes, max((second["max_ms"] or 0.0 for second in seconds), default=0.0))
    mark_faults(axes, analysis)
    legend_above(axes)


def distribution(figure: Figure, analysis: dict[str, Any]) -> None:
    """Latency by percentile, with the tail stretched: each step to the right is ten times rarer."""
    axes = figure.add_subplot()
    points = [point for point in analysis["distribution"] if point["quantile"] < 1]
    for name, look in (
        ("read_ms", {"color": TEAL, "ls": "--", "label": "until read"}),
        ("acknowledged_ms", {"color": BLUE, "label": "until acknowledged"}),
    ):
        values = [float("nan") if point[name] is None else point[name] for point in points]
        axes.plot([rarity(point["quantile"]) for point in points], values, marker="o", markersize=4, lw=1.8, **look)
    axes.set_xscale("log")
    axes.set_xticks([rarity(quantile) for quantile in QUANTILE_TICKS], list(QUANTILE_TICKS.values()))
    axes.minorticks_off()
    axes.set(xlabel="part of the events that were at least as fast", ylabel="latency, ms")
    logarithmic(axes, max((point["read_ms"] or point["acknowledged_ms"] or 0.0 for point in points), default=0.0))
    legend_above(axes)


def outages(figure: Figure, analysis: dict[str, Any]) -> None:
    """The longest window without an acknowledgement per partition, after the kill if there was one."""
    axes = figure.add_subplot()
    bars = outage_rows(analysis)
    colors = {True: RED, False: GREY}
    longest = max((bar["seconds"] for bar in bars), default=0.0)
    for position, bar in enumerate(bars):
        axes.barh(position, bar["seconds"], height=0.62, color=colors[bar["led"]])
        text = f"{bar['seconds']:.2f} s" if bar["due"] else "no event was due"
        axes.text(bar["seconds"] + longest * 0.01, position, text, va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [bar["name"] for bar in bars])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="seconds without an acknowledgement", xlim=(0, max(longest * 1.12, 0.01)))
    if any(bar["led"] for bar in bars):
        handles = [axes.barh(0, 0, color=RED), axes.barh(0, 0, color=GREY)]
        labels = ["led by the killed broker", "led by another broker"]
        axes.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


def outage_rows(analysis: dict[str, Any]) -> list[dict[str, Any]]:
    """Per partition: name, seconds, whether the killed broker led it, and the events due."""
    kills = [fault for fault in analysis["faults"] if fault["kind"] == "kill"]
    if kills:
        return [
            {
                "name": f"{outage['topic']}-{outage['partition']}",
                "seconds": outage["seconds"],
                "led": outage["led_by_broker"],
                "due": outage["due"],
            }
            for outage in kills[0]["outages"]
        ]
    return [
        {
            "name": f"{analysis['topic']}-{partition['partition']}",
            "seconds": partition["longest_outage_s"],
            "led": False,
            "due": partition["events"],
        }
        for partition in analysis["partitions"]
    ]


def every_second(by_second: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The seconds, with zeros for those without events, so that gaps are visible."""
    known = {second["second"]: second for second in by_second}
    empty = {"due": 0, "acknowledged": 0, "read": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}
    return [known.get(number, {"second": number, **empty}) for number in range(max(known, default=0) + 2)]


def rarity(quantile: float) -> float:
    """1 for the fastest, 10 for 90 %, 100 for 99 % and so on."""
    return 1 / (1 - quantile)


def logarithmic(axes: Any, highest: float) -> None:
    """A logarithmic axis with room for text above `highest`; unchanged if there are no values."""
    if highest <= 0:
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylim(top=3 * highest)


def mark_faults(axes: Any, analysis: dict[str, Any]) -> None:
    """A line and text at each fault, and a shaded area from the kill to the return."""
    for fault in analysis["faults"]:
        color, line, word = FAULT_LOOKS[fault["kind"]]
        axes.axvline(fault["second"], color=color, ls=line, lw=1.6)
        axes.annotate(
            f" broker {fault['broker']} {word}",
            (fault["second"], 0.985),
            xycoords=("data", "axes fraction"),
            va="top",
            color=color,
            fontsize=9,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
        )
        if fault["kind"] == "kill":
            axes.axvspan(fault["second"], fault["until_second"], color=RED, alpha=0.05, lw=0)


def legend_above(axes: Any) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2)
