"""The summary of a replay: `summary.json`, and the lines that a person reads at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def summary_of(analysis: dict[str, Any]) -> dict[str, Any]:
    """The content of `summary.json`. `throughput` is acknowledged events per second over the whole replay; `outages`
    are those of the partitions that a killed broker led; `group` exists if a consumer group read along."""
    counts = analysis["totals"]
    summary = {
        **{key: counts[key] for key in ("sent", "acknowledged", "read", "lost", "duplicated")},
        "outages": [
            {"topic": outage["topic"], "partition": outage["partition"], "seconds": round(outage["seconds"], 3)}
            for fault in analysis["faults"]
            if fault["kind"] == "kill"
            for outage in fault["outages"]
            if outage["led_by_broker"]
        ],
        "throughput": round(counts["acknowledged_per_second"], 2),
        "latency_ms": {
            name: None if value is None else round(value, 3) for name, value in analysis["latency_ms"].items()
        },
    }
    if "group" in analysis:
        summary["group"] = group_summary(analysis["group"])
    return summary


def group_summary(group: dict[str, Any]) -> dict[str, Any]:
    """`lag` is None if unknown. `longest_pause_s` and `commit_gap_s` are those after the kill."""
    kept = ("group", "read", "read_again", "skipped", "lag", "commits", "rebalances", "rebalances_after_kill")
    gap = group["commit_gap_s"]
    return {
        **{key: group[key] for key in kept},
        "members": len(group["members"]),
        "coordinator": group["coordinator"],
        "longest_pause_s": round(group["pause_s"], 3),
        "commit_gap_s": None if gap is None else round(gap, 3),
    }


def summary_lines(analysis: dict[str, Any]) -> Iterator[str]:
    """The measurements in words."""
    counts, latency = analysis["totals"], summary_of(analysis)["latency_ms"]
    yield f"events sent           {counts['sent']:>10,}"
    yield f"acknowledged (all)    {counts['acknowledged']:>10,}" + failed_note(counts["failed"])
    yield f"read back             {counts['read']:>10,}"
    yield f"lost                  {counts['lost']:>10,}" + ("  <-- acknowledged, never read" if counts["lost"] else "")
    doubled = "  <-- in the log more than once" if counts["duplicated"] else ""
    yield f"duplicated            {counts['duplicated']:>10,}{doubled}"
    yield (
        f"throughput            {counts['acknowledged_per_second']:>10,.1f} acknowledged/s over "
        f"{analysis['seconds']:.1f} s, busiest second {busiest_second(analysis):,}"
    )
    known = [f"{name} {value:,.1f}" for name, value in latency.items() if value is not None]
    yield f"latency (ms)          {'   '.join(known) or 'nothing was acknowledged'}   from the scheduled time"
    for fault in analysis["faults"]:
        if fault["kind"] == "kill":
            yield from outage_lines(fault)
    if "group" in analysis:
        yield from group_lines(analysis["group"], any(fault["kind"] == "kill" for fault in analysis["faults"]))


def group_lines(group: dict[str, Any], is_killed: bool) -> Iterator[str]:
    """The consumer group's results, each number with its meaning."""
    yield f"consumer group {group['group']}: {len(group['members'])} members, {coordinator_words(group['coordinator'])}"
    again = f", {group['read_again']:,} of them twice" if group["read_again"] else ""
    skipped = "  <-- acknowledged, the group never read them" if group["skipped"] else ""
    lag = "unknown" if group["lag"] is None else f"{group['lag']:,}"
    yield f"  records read        {group['read']:>10,}{again}"
    yield f"  skipped             {group['skipped']:>10,}{skipped}"
    yield f"  lag at the end      {lag:>10}   records not committed yet"
    yield f"  commits             {group['commits']:>10,}   positions recorded in the cluster"
    after = f"   {group['rebalances_after_kill']:,} after the kill" if is_killed else ""
    yield f"  rebalances          {group['rebalances']:>10,}{after}; each assigns the partitions to the members"
    where = f" (partition {group['pause_partition']})" if group["pause_partition"] is not None else ""
    yield f"  longest pause       {group['pause_s']:>8.2f} s   an event was due and it read nothing{where}"
    if group["commit_gap_s"] is not None:
        yield f"  without a commit    {group['commit_gap_s']:>8.2f} s   the longest time between two, around the kill"


def coordinator_words(coordinator: dict[str, Any]) -> str:
    words = f"coordinated by broker {coordinator['before']}"
    if not coordinator["was_killed"]:
        return words
    after = "an unknown one" if coordinator["after"] is None else f"broker {coordinator['after']}"
    return f"{words}, which was killed, then by {after}"


def failed_note(failed: int) -> str:
    return f"  ({failed:,} not acknowledged)" if failed else ""


def busiest_second(analysis: dict[str, Any]) -> int:
    return max((second["acknowledged"] for second in analysis["by_second"]), default=0)


def outage_lines(fault: dict[str, Any]) -> Iterator[str]:
    """The outage of each partition that the killed broker led, and the worst of the others."""
    yield f"outage after the kill of broker {fault['broker']} (its partitions):"
    for outage in fault["outages"]:
        if outage["led_by_broker"]:
            seen = f"{outage['seconds']:.2f} s" if outage["due"] else "not seen: nothing was due"
            yield f"  {outage['topic']}-{outage['partition']}         {seen:>12}"
    others = [outage for outage in fault["outages"] if not outage["led_by_broker"] and outage["due"]]
    if others:
        worst = max(others, key=lambda outage: float(outage["seconds"]))
        yield f"  worst of the others  {worst['seconds']:>9.2f} s ({worst['topic']}-{worst['partition']})"
