"""What the demo's consumer group did, for `summary.json` and for the person who reads the demo's end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


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
