"""The summary of a replay: `summary.json`, and the lines that a person reads at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def summary_of(analysis: dict[str, Any]) -> dict[str, Any]:
    """The content of `summary.json`. `throughput` is acknowledged events per second over the whole replay; `outages`
    are those of the partitions that a killed broker led."""
    counts = analysis["totals"]
    return {
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


def summary_lines(analysis: dict[str, Any]) -> Iterator[str]:
    """What was measured, in words."""
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
