"""Sentences, figures and rows about a run or a comparison, which HTML, Markdown and the terminal share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.pages.units import NONE, count, digits, milliseconds, moment, percent, quantity, scaled, seconds
from tools.replay.checks import NOT_READ, accepted

DONE = {
    "kill": "was killed",
    "stop": "was stopped",
    "start": "was started",
    "restart": "was restarted",
    "pause": "was paused",
    "resume": "was resumed",
}


def partition_name(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}-{row['partition']}"


def fault_sentence(fault: Mapping[str, Any]) -> str:
    """What was done to whom, and what it cost."""
    role, broker = fault["role"], fault["broker"]
    hint = f" ({role})" if " of " in role else ""
    victim = f"the {role}" if broker is None else f"broker {broker}{hint}"
    at = moment(fault["second"])
    if fault["error"]:
        return f"At {at}, “{fault['verb']} {role}” could not be done: {fault['error']}."
    done = f"At {at}, {victim} {DONE.get(fault['verb'], fault['verb'])}"
    if not fault["outage_s"]:
        return f"{done}."
    cost = f"{done}: no writes for at most {seconds(fault['outage_s'])}, {count(fault['delayed'])} records delayed"
    if fault["normal_after_s"] is None:
        return f"{cost}."
    return f"{cost}, normal again after {seconds(fault['normal_after_s'])}."


def accepted_words(verdict: Mapping[str, Any] | None) -> str:
    """What happened to batches without acks=all; empty if nothing did."""
    found = ", ".join(f"{count(number)} {name}" for name, number in accepted(verdict).items())
    return f"{found} without acks=all, which such a client accepts (--forbid does not)" if found else ""


def evidence_rows(evidence: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of evidence."""
    header = list(dict.fromkeys(name for row in evidence for name in row))
    return [name.replace("_", " ") for name in header], [[_plain(row.get(name)) for name in header] for row in evidence]


def _plain(value: Any) -> str:
    """A place is `topic-partition@offset`; several stand side by side."""
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, Mapping):
        if {"topic", "partition", "offset"} <= value.keys():
            return f"{value['topic']}-{value['partition']}@{value['offset']}"
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return NONE if value is None else str(value)


def counted_from(analysis: Mapping[str, Any]) -> str:
    """From when latencies count."""
    if analysis["loop"] == "closed":
        return "from the sent time, in a closed loop: operations leave as answers come"
    return "from the scheduled time"


def transaction_words(ends: Mapping[str, Any]) -> str:
    """How many transactions were committed and aborted, how many offsets were committed in them, and how much of this failed."""
    names = {"commit": "committed", "abort": "aborted", "offsets": "offsets"}
    done = [f"{count(each['operations'] - each['failed'])} {names[op]}" for op, each in ends.items()]
    return f"{', '.join(done)}, {count(sum(each['failed'] for each in ends.values()))} failed"


def cpu_words(analysis: Mapping[str, Any]) -> str:
    """The cores that brokers, generator and Spark used on average while operations were sent."""
    found = analysis["generator"]["cpu"].items()
    return ", ".join(f"{name} {'not known' if cores is None else f'{cores:.2f}'}" for name, cores in found)


def clock_words(analysis: Mapping[str, Any]) -> str | None:
    """How far the clocks of the tasks moved from the driver's during the run; None if that was not measured."""
    drifts = [task for task in analysis["tasks"] if task.get("clock_drift_ms") is not None]
    if not drifts:
        return None
    worst = max(drifts, key=lambda task: float(abs(task["clock_drift_ms"])))
    return f"{worst['clock_drift_ms']:+.3f} ms, ±{worst['clock_drift_uncertainty_ms']:.3f} ms (task {worst['task']})"


def key_figures(analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """(name, value, note) of the most important figures."""
    totals, latencies, late = analysis["totals"], analysis["latency_ms"], analysis["lateness_ms"] or {}
    produce, fetch, worst = (
        totals["produce"],
        totals["fetch"],
        max(analysis["outages"], key=lambda outage: float(outage["seconds"]), default=None),
    )
    produced, fetched = latencies["produce"]["scheduled"] or {}, latencies["fetch"]["scheduled"] or {}
    failed = produce["failed"] + fetch["failed"]
    read, generator = analysis["end_to_end"] or {}, analysis["generator"]
    read_ms = read.get("ms") or {}
    ends = analysis.get("transactions") or {}
    lost = "Lost", NONE, NOT_READ
    if verdict is not None:
        lost = "Lost", count(verdict["lost"]), f"of {count(verdict['acknowledged'])} acknowledged records"
    outage = "Longest outage", "none", "no partition for 0.1 s or longer"
    if worst is not None:
        place = f"{partition_name(worst)}, at {moment(worst['from_second'])}"
        outage = "Longest outage", seconds(worst["seconds"]), place
    made = (
        f"{digits(produce['records_per_second'])} records/s, {digits(produce['per_second'])} operations/s acknowledged"
    )
    of_fetch = f"median {milliseconds(fetched.get('p50'))}, with the wait that the fetch asked for"
    unread = f"since the last acknowledgement; {count(read.get('unread'))} records were not read"
    late_words = (
        f"how late operations left; the generator had 99 % ready {milliseconds(generator['late_ms'].get('p99'))} late"
    )
    limited = f"of {count(generator['intervals'])} intervals; cores on average: {cpu_words(analysis)}"
    return [
        lost,
        outage,
        ("Produced", scaled(produce["bytes_per_second"], "B/s"), made),
        ("Latency of produce, 99 %", milliseconds(produced.get("p99")), middle_and_slowest(produced)),
        ("Fetched", scaled(fetch["bytes_per_second"], "B/s"), f"{digits(fetch['records_per_second'])} records/s"),
        ("Latency of fetch, 99 %", milliseconds(fetched.get("p99")), of_fetch),
        ("Latency end to end, 99 %", milliseconds(read_ms.get("p99")), middle_and_slowest(read_ms)),
        ("Backlog drained after", seconds(read.get("drained_s")), unread),
        (
            "Failed or not done",
            count(failed + totals["not_done"]),
            f"{count(failed)} failed, {count(totals['not_done'])} not done",
        ),
        *(
            [("Transactions", count(sum(each["operations"] for each in ends.values())), transaction_words(ends))]
            if ends
            else []
        ),
        ("Lateness, 99 %", milliseconds(late.get("p99")), late_words),
        ("Generator the limit", count(generator["limited"]), limited),
    ]


def middle_and_slowest(found: Mapping[str, Any]) -> str:
    return f"median {milliseconds(found.get('p50'))}, slowest {milliseconds(found.get('max'))}"


def difference_table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of what the runs say of each metric."""
    counts = [sum(run["side"] == side for run in comparison["runs"]) for side in "AB"]
    heads = [f"{side} ({number} run{'s' * (number > 1)})" for side, number in zip("AB", counts, strict=True)]
    rows = [
        [
            row["metric"],
            *(quantity(row[side], row["unit"]) for side in "ab"),
            percent(row["change"]),
            "" if row["interval"] is None else " to ".join(percent(end) for end in row["interval"]),
            difference_word(row),
        ]
        for row in comparison["rows"]
    ]
    return ["metric", *heads, "change", "interval", ""], rows


def difference_word(row: Mapping[str, Any]) -> str:
    if row["p"] is None:
        return "no statement"
    return "worse" if row["worse"] else "better" if row["differs"] else "no difference beyond noise"
