"""Sentences and rows about a run, which HTML and Markdown share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.pages.units import count, moment, seconds
from tools.replay.checks import accepted

DONE = {
    "kill": "was killed",
    "stop": "was stopped",
    "start": "was started",
    "restart": "was restarted",
    "pause": "was paused",
    "resume": "was resumed",
}


def longest_outage(analysis: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return max(analysis["outages"], key=lambda outage: float(outage["seconds"]), default=None)


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
    return "–" if value is None else str(value)


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
