"""The report of a replay: one self-contained HTML page with plots, their numbers as tables, and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tools.replay import figures
from tools.replay.trace import moment

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #52606d; --line: #d9dee3; --good: #2e7d32; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6f8; color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 0 0 .15rem; }
p { margin: .25rem 0 .75rem; } .soft { color: var(--soft); }
.verdict { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap; margin: 1.25rem 0; padding: 1rem 1.25rem;
  background: #fff; border: 1px solid var(--line); border-left: 6px solid var(--good); border-radius: 8px; }
.verdict.bad { border-left-color: var(--bad); }
.verdict strong { font-size: 1.25rem; color: var(--good); } .verdict.bad strong { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: .75rem; margin: 0 0 1.25rem;
  padding: 0; }
.tiles div { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; }
.tiles dt { color: var(--soft); font-size: .85rem; } .tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600;
  font-variant-numeric: tabular-nums; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: 1.1rem 1.25rem; margin: 0 0 1.25rem; }
figure { margin: 0; overflow-x: auto; } svg { display: block; height: auto; min-width: 640px; }
details { margin-top: .5rem; } summary { cursor: pointer; color: var(--soft); }
.scroll { overflow-x: auto; max-height: 24rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { font-weight: 600; }
@media print { body { background: #fff; } details, section { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of the page: title, description, drawing function and numbers."""

    title: str
    words: str
    draw: Callable[[Figure, dict[str, Any]], None]
    height_in: float
    header: Sequence[str]
    rows: list[Sequence[Any]]


def write_report(path: Path, analysis: dict[str, Any]) -> None:
    path.write_text(page(analysis), encoding="utf-8")


def page(analysis: dict[str, Any]) -> str:
    """The whole page."""
    verdict, is_bad = verdict_of(analysis)
    sections = "\n".join(section(number, plot, analysis) for number, plot in enumerate(plots(analysis)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ottla replay: {escape(verdict)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Replay of topic {escape(analysis["topic"])}</h1>
<p class="soft">{escape(description(analysis))}</p>
<div class="verdict{" bad" if is_bad else ""}"><strong>{escape(verdict)}</strong>
<span>{escape(verdict_note(analysis))}</span></div>
<dl class="tiles">{tiles(analysis)}</dl>
{group_section(analysis)}
{sections}
<section><h2>How it was measured</h2>
<p>Latency counts from the time at which an event was due, not from when it could be sent, so stalls are visible.
An outage of a partition is a window without an acknowledgement in which at least one event was due; it starts at the
previous acknowledgement, or when the oldest waiting event became due if that was later. Lost events were acknowledged
by all in-sync replicas (acks=all) and never read. Duplicated counts additional copies of an event that were read at other
offsets. Every operation is a row of <code>operations.parquet</code> beside this page.{group_measure(analysis)}</p>
{errors(analysis)}</section>
</main>
</body>
</html>
"""


def description(analysis: dict[str, Any]) -> str:
    tasks = analysis["tasks"]
    first, last = moment(analysis["trace_first_time_us"]), moment(analysis["trace_last_time_us"])
    return (
        f"Events from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, replayed {analysis['speed']:,.0f} times "
        f"as fast in {analysis['seconds']:.1f} s by {tasks['producing']} producing and {tasks['reading']} reading "
        f"Spark tasks, through {analysis['bootstrap_servers']}."
    )


def verdict_of(analysis: dict[str, Any]) -> tuple[str, bool]:
    """The verdict in one sentence; True if it is bad."""
    counts = analysis["totals"]
    if not counts["acknowledged"]:
        return "Nothing was acknowledged.", True
    if counts["lost"]:
        return f"{counts['lost']:,} acknowledged event(s) were lost.", True
    if counts["duplicated"]:
        return f"Nothing was lost, but {counts['duplicated']:,} event(s) were written more than once.", True
    if "group" in analysis and analysis["group"]["skipped"]:
        return f"Nothing was lost, but the consumer group skipped {analysis['group']['skipped']:,} event(s).", True
    return "Nothing was lost, nothing was written twice.", False


def verdict_note(analysis: dict[str, Any]) -> str:
    """The faults in words, with the longest outage caused by each."""
    notes = []
    for fault in analysis["faults"]:
        if fault["kind"] == "kill":
            own = [outage["seconds"] for outage in fault["outages"] if outage["led_by_broker"] and outage["due"]]
            cost = f"; its partitions accepted writes again after at most {max(own):.2f} s" if own else ""
            notes.append(
                f"Broker {fault['broker']} was killed (SIGKILL) {fault['second']:.1f} s after the start{cost}."
            )
        else:
            notes.append(f"It was restarted at {fault['second']:.1f} s.")
    return " ".join(notes) or "No fault was injected."


def tiles(analysis: dict[str, Any]) -> str:
    counts, latency = analysis["totals"], analysis["latency_ms"]
    shown = [
        (name.capitalize(), f"{counts[name]:,}") for name in ("sent", "acknowledged", "read", "lost", "duplicated")
    ]
    shown.append(("Throughput, per second", f"{counts['acknowledged_per_second']:,.1f}"))
    shown += [(f"Latency {label}", milliseconds(latency[name])) for name, label in PERCENTILE_LABELS.items()]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)


PERCENTILE_LABELS = {"p50": "median", "p95": "95 %", "p99": "99 %", "p999": "99.9 %"}


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} ms"


def plots(analysis: dict[str, Any]) -> list[Plot]:
    by_second, bars = analysis["by_second"], figures.outage_rows(analysis)
    killed = any(bar["led"] for bar in bars)
    shown = [
        Plot(
            "Throughput over time",
            "Events per second: those that were due, and those acknowledged and read in that second.",
            figures.throughput,
            figures.HEIGHT_IN,
            ("second", "due", "acknowledged", "read"),
            [[second[name] for name in ("second", "due", "acknowledged", "read")] for second in by_second],
        ),
        Plot(
            "Outage of each partition",
            "The longest time without an acknowledgement between the kill and the return. Partitions of other leaders "
            "stop too, until the dead follower has left the in-sync replicas."
            if killed
            else "The longest time without an acknowledgement although an event was due.",
            figures.outages,
            0.9 + 0.34 * max(len(bars), 2),
            ("partition", "seconds", "led by the killed broker", "events due"),
            [[bar["name"], f"{bar['seconds']:.3f}", "yes" if bar["led"] else "no", bar["due"]] for bar in bars],
        ),
        Plot(
            "Latency over time",
            "From the scheduled time to the acknowledgement, for the events due in each second (logarithmic).",
            figures.latency_over_time,
            figures.HEIGHT_IN,
            ("second", "median", "99 %", "slowest"),
            [[second["second"], *map(milliseconds, percentiles(second))] for second in by_second],
        ),
        Plot(
            "Latency distribution",
            "From the scheduled time, for all events; each step to the right is ten times rarer (logarithmic).",
            figures.distribution,
            figures.HEIGHT_IN,
            ("percentile", "until acknowledged", "until read"),
            [
                [
                    f"{point['quantile'] * 100:g} %",
                    milliseconds(point["acknowledged_ms"]),
                    milliseconds(point["read_ms"]),
                ]
                for point in analysis["distribution"]
            ],
        ),
    ]
    if "group" in analysis:
        shown.insert(1, group_plot(analysis["group"]))
    return shown


def group_plot(group: dict[str, Any]) -> Plot:
    members = [f"member {member['member']}" for member in group["members"]]
    return Plot(
        "What the consumer group read",
        "Records per second by each member of the group, stacked; a mark above for each second in which the "
        "cluster accepted a commit.",
        figures.group_reads,
        figures.HEIGHT_IN,
        ("second", *members, "commits"),
        [[second["second"], *second["read"], second["commits"]] for second in group["by_second"]],
    )


def group_section(analysis: dict[str, Any]) -> str:
    """The group in text and numbers; empty if no group read along."""
    if "group" not in analysis:
        return ""
    group = analysis["group"]
    rows = [
        [
            f"member {member['member']}",
            ", ".join(map(str, member["partitions"])) or "none",
            f"{member['read']:,}",
            f"{member['commits']:,}",
        ]
        for member in group["members"]
    ]
    return f"""<section><h2>The consumer group {escape(group["group"])}</h2>
<p>A consumer group is several readers that share the work: each partition is read by one member, and the group records
its position in the cluster (a commit), so that another member can continue from there. One broker, the coordinator,
manages the group. {escape(coordinator_note(group))}</p>
{table(("", "", "what it means"), group_numbers(group))}
<p>Who read which partitions at the end ({escape(group["assignor"])}):</p>
{table(("", "partitions", "records read", "commits"), rows)}
</section>"""


def coordinator_note(group: dict[str, Any]) -> str:
    """The coordinator, and what happened to the group if it was killed."""
    coordinator, count = group["coordinator"], group["rebalances_after_kill"]
    if not coordinator["was_killed"]:
        return f"Here it was broker {coordinator['before']}, which was not killed."
    if coordinator["after"] is None:
        return f"Here it was broker {coordinator['before']}, which was killed; its successor is unknown."
    after = (
        "The members kept their partitions."
        if not count
        else f"The group assigned its partitions again {count:,} time(s) after that."
    )
    return (
        f"Here it was broker {coordinator['before']}, which was killed; broker {coordinator['after']} took the group over "
        f"from its replica of the committed offsets. {after}"
    )


def group_numbers(group: dict[str, Any]) -> list[tuple[str, str, str]]:
    lag = "unknown" if group["lag"] is None else f"{group['lag']:,}"
    gap = "–" if group["commit_gap_s"] is None else f"{group['commit_gap_s']:.2f} s"
    again = (
        f"; {group['read_again']:,} of them twice, because they were not committed yet" if group["read_again"] else ""
    )
    return [
        ("records read", f"{group['read']:,}", f"by all members{again}"),
        ("skipped", f"{group['skipped']:,}", "acknowledged events that no member ever read: must be 0"),
        ("lag at the end", lag, "records after the last commit; 0 if all are done"),
        (
            "commits",
            f"{group['commits']:,}",
            f"accepted by the cluster; {group['failed_commits']:,} were refused and retried",
        ),
        ("rebalances", f"{group['rebalances']:,}", "assignments of partitions, at first as members joined"),
        ("rebalances after the kill", f"{group['rebalances_after_kill']:,}", "0: the members hardly noticed"),
        ("longest pause", f"{group['pause_s']:.2f} s", "an event was due and nothing of its partition was read"),
        ("longest time without a commit", gap, "around the kill, while the coordinator was down"),
    ]


def percentiles(second: dict[str, Any]) -> list[float | None]:
    return [second["p50_ms"], second["p99_ms"], second["max_ms"]]


def section(number: int, plot: Plot, analysis: dict[str, Any]) -> str:
    svg = figures.svg_of(plot.draw, analysis, plot.height_in)
    labelled = svg.replace("<svg", f'<svg role="img" aria-labelledby="plot-{number} words-{number}"', 1)
    return f"""<section>
<h2 id="plot-{number}">{escape(plot.title)}</h2>
<p class="soft" id="words-{number}">{escape(plot.words)}</p>
<figure>{labelled}</figure>
<details><summary>The numbers</summary>{table(plot.header, plot.rows)}</details>
</section>"""


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def group_measure(analysis: dict[str, Any]) -> str:
    if "group" not in analysis:
        return ""
    return """ A pause of the group is a window in which it read nothing of a partition although an event was due;
    it includes the partition's outage. Its reads are <code>group-reads.parquet</code>, its commits and assignments
<code>group.json</code>."""


def errors(analysis: dict[str, Any]) -> str:
    """The errors of failed operations, if any."""
    if not analysis["errors"]:
        return "<p>No operation ended with an error.</p>"
    rows = [[error["error"], error["op"], error["operations"]] for error in analysis["errors"]]
    return "<p>Operations that ended with an error:</p>" + table(("error", "operation", "count"), rows)
