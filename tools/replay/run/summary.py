"""The summary of a replay: `summary.json`, and the lines that a person reads at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.replay.checks import DELIVERY, accepted, generator_limit, run_checks
from tools.replay.pages.words import accepted_words, clock_words, counted_from, cpu_words, transaction_words

VERDICT_WORDS = {
    "acknowledged": "records acknowledged",
    "found": "records read back",
    **DELIVERY,
    "compacted": "acknowledged, not found in a compacted topic: there are newer records with their keys",
}
GROUPS_SHOWN = 5


def summary_of(analysis: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    """The content of `summary.json`. Counts are records.

    `checks`: name -> "passed", "failed" or "not verified", and why. `read`: acknowledged records that were found. `throughput`:
    acknowledged records per second. `outages`: those of the partitions that a killed broker led. `transactions` and `groups` are there if
    clients had some. `generator`: whether it was the limit, in how many intervals, and the cores that were used.
    `end_to_end`: None if nothing was fetched.
    """
    generator = {name: analysis["generator"][name] for name in ("is_limited", "limited", "intervals", "cpu")}
    end_to_end = analysis["end_to_end"]
    produce = analysis["totals"]["produce"]
    latency = analysis["latency_ms"]["produce"]["scheduled"]
    return {
        "checks": {
            check.name: {"result": check.result, "reason": check.reason} for check in run_checks(analysis, verdict)
        },
        "changes": analysis.get("changes", []),
        "sent": produce["sent_records"],
        "acknowledged": verdict["acknowledged"],
        "read": verdict["acknowledged"]
        - sum(verdict.get(name, 0) for name in ("lost", "unseen", "deleted", "compacted"))
        - accepted(verdict).get("lost", 0),
        "lost": verdict["lost"],
        "duplicated": verdict["duplicated"],
        "without_acks_all": dict(accepted(verdict)),
        "outages": [
            {"topic": outage["topic"], "partition": outage["partition"], "seconds": round(outage["seconds"], 3)}
            for fault in analysis["faults"]
            if fault["verb"] == "kill"
            for outage in fault["outages"]
            if outage["led"]
        ],
        "throughput": round(produce["records_per_second"], 2),
        "latency_ms": {name: rounded(latency[name]) for name in ("p50", "p95", "p99", "p999")},
        "loop": analysis["loop"],
        "generator": generator,
        "end_to_end": end_to_end
        and end_to_end | {"ms": {name: rounded(value) for name, value in (end_to_end["ms"] or {}).items()}},
        **({"transactions": analysis["transactions"]} if analysis.get("transactions") else {}),
        **({"groups": analysis["groups"]} if analysis["groups"] else {}),
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def summary_lines(analysis: dict[str, Any], verdict: dict[str, Any]) -> Iterator[str]:
    """The measurements, then the verdict, in words."""
    if limit := generator_limit(analysis):
        yield f"  {limit}"
    totals = analysis["totals"]
    produce, fetch = totals["produce"], totals["fetch"]
    if produce["operations"]:
        seconds = produce.get("seconds", analysis["seconds"])
        yield (
            f"  produced      {produce['acknowledged']:>12,}   batches acknowledged in {seconds:,.1f} s: "
            f"{produce['records_per_second']:,.0f} records/s, {produce['bytes_per_second'] / 1e6:,.2f} MB/s"
        )
        yield from latency_line(analysis["latency_ms"]["produce"]["scheduled"], counted_from(analysis))
    if fetch["operations"]:
        yield (
            f"  fetched       {fetch['answered']:>12,}   answers: "
            f"{fetch['records_per_second']:,.0f} records/s, {fetch['bytes_per_second'] / 1e6:,.2f} MB/s"
        )
        yield from latency_line(analysis["latency_ms"]["fetch"]["scheduled"], counted_from(analysis))
    if ends := analysis.get("transactions"):
        yield f"  transactions                 {transaction_words(ends)}"
        for op, found in ends.items():
            yield from latency_line(found["ms"], f"{op}, {counted_from(analysis)}")
    yield from end_to_end_lines(analysis["end_to_end"])
    if analysis["loop"] == "open" and analysis["lateness_ms"]["p99"] is not None:
        ready_ms = analysis["generator"]["late_ms"]["p99"]
        yield (
            f"  late (p99)    {analysis['lateness_ms']['p99']:>12,.1f}   ms, between the scheduled and the sent time; of it the generator "
            f"{'not known' if ready_ms is None else f'{ready_ms:,.1f} ms'}"
        )
    yield f"  cores                        {cpu_words(analysis)}"
    if clocks := clock_words(analysis):
        yield f"  clock drift                  {clocks}"
    for error in analysis["errors"]:
        yield f"  failed        {error['operations']:>12,}   {error['op']} operations: {error['error']}"
    if totals["not_done"]:
        problem = analysis["problem"]
        why = f"because a task was lost: {first_line(problem)}" if problem else "were left out"
        yield f"  not done      {totals['not_done']:>12,}   operations {why}"
    for fault in analysis["faults"]:
        yield fault_line(fault)
    yield from group_lines(analysis["groups"])
    if analysis["knee"] is not None:
        knee = analysis["knee"]
        yield f"  knee          {knee['per_second']:>12,.0f}   operations/s at speed {knee['speed']:g}x; the next step falls behind"
    for name, text in VERDICT_WORDS.items():
        yield f"  {name:13} {verdict.get(name, 0):>12,}   {text}"
    if words := accepted_words(verdict):
        yield f"  accepted                     {words}"


def end_to_end_lines(found: dict[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    yield f"  read          {found['records']:>12,}   records for the first time"
    if found["ms"] is not None:
        yield from latency_line(found["ms"], "end to end, from due to first read")
    if found["drained_s"] is not None:
        yield f"  drained       {found['drained_s']:>12,.2f}   s after the last acknowledgement"
    elif found["unread"]:
        yield f"  backlog       {found['unread']:>12,}   records were not read until the end"


def latency_line(latency: dict[str, float | None], counted: str) -> Iterator[str]:
    known = [f"{name} {latency[name]:,.1f}" for name in ("p50", "p95", "p99", "p999") if latency[name] is not None]
    if known:
        yield f"  latency (ms)                 {'   '.join(known)}   {counted}"


def group_lines(groups: list[dict[str, Any]]) -> Iterator[str]:
    """The groups that were the longest time without a heartbeat, and how many others there are."""
    worst = sorted(groups, key=lambda row: -row["longest_without_heartbeat_s"])
    for row in worst[:GROUPS_SHOWN]:
        yield (
            f"  group         {row['group']}: {row['members']:,} members{protocol_words(row)}, {row['rebalances']:,} rebalances, "
            f"{row['commits']:,} commits, {row['failed_commits']:,} failed{', ' * bool(row['error'])}{row['error']}"
        )
        yield (
            f"                {row['read']:,} records read, {row['read_again']:,} of them again, {row['skipped']:,} skipped; at most "
            f"{row['longest_overdue_s']:,.2f} s overdue, {row['longest_without_heartbeat_s']:,.1f} s without a heartbeat, "
            f"{row['longest_without_commit_s']:,.1f} s without a commit"
        )
    if len(worst) > GROUPS_SHOWN:
        yield f"  group         {len(worst) - GROUPS_SHOWN:,} others"


def protocol_words(group: dict[str, Any]) -> str:
    """An older ottla knew the classic protocol only."""
    return f" by the {name} protocol" if (name := group.get("protocol")) else ""


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason"])[0]


def fault_line(fault: dict[str, Any]) -> str:
    """One fault: when it came, and what it cost."""
    who = "" if fault["broker"] is None else f" (broker {fault['broker']})"
    what = f"  at {fault['second']:,.1f} s: {fault['verb']} {fault['role']}{who}"
    if fault["error"]:
        return f"{what}: {fault['error']}"
    after = fault["normal_after_s"]
    normal = "did not become normal again" if after is None else f"normal again after {after:,.1f} s"
    return f"{what}: outage {fault['outage_s']:,.2f} s, {fault['delayed']:,} records delayed, {normal}"
