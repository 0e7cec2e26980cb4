"""The verdict as text: the answer first, then a line for each fault, then the evidence."""

from __future__ import annotations

from collections.abc import Iterator

from tools.judge.findings import Finding
from tools.judge.outages import SHOWN_S
from tools.judge.verdict import CLEAN, FOUND, FaultResult, Judgement, Verdict

SHOWN = 5
"""Findings of a kind that are printed; the files have more."""


def lines_of(verdict: Verdict) -> Iterator[str]:
    """Lines for the terminal."""
    sign = {CLEAN: "PASSED", FOUND: "FAILED"}.get(verdict.exit_code, "INCOMPLETE")
    yield f"{sign}  {verdict.headline}"
    for reason in verdict.incomplete:
        yield f"  {reason}"
    yield ""
    for client in verdict.clients:
        counts = ", ".join(f"{count:,} {event}" for event, count in client.counts().items())
        yield f"{client.name}: {counts}"
    if verdict.faults:
        yield ""
        yield from map(fault_line, verdict.faults)
    for judgement in verdict.judgements:
        yield ""
        yield from judgement_lines(judgement)
    if verdict.notes:
        yield ""
        yield from (f"Note: {note}" for note in verdict.notes)


def fault_line(result: FaultResult) -> str:
    fault = result.fault
    at = f"{fault.at:7.2f} s  {fault}"
    if fault.error:
        return f"{at}: not done: {fault.error}"
    found = ", ".join(f"{count:,} {kind}" for kind, count in result.findings.items())
    who = f"hit {fault.who}; " if fault.who else ""
    return f"{at}: {who}{cost_words(result)}" + (f"; {found}" if found else "")


def cost_words(result: FaultResult) -> str:
    """`no writes for 0.31 s (orders-0), no reads for 0.35 s (orders-3 for billing), recovered after 0.40 s`: the longest of each."""
    cost = result.cost
    writes = next((outage for outage in cost.outages if not outage.group), None)
    reads = next((outage for outage in cost.outages if outage.group), None)
    out = [
        f"no {what} for {outage.seconds:.2f} s ({outage.name})"
        for what, outage in (("writes", writes), ("reads", reads))
        if outage is not None
    ]
    if not out:
        return f"no outage of {SHOWN_S:g} s or longer"
    end = "not recovered until the end" if cost.recovered_s is None else f"recovered after {cost.recovered_s:.2f} s"
    return ", ".join([*out, end])


def judgement_lines(judgement: Judgement) -> Iterator[str]:
    severity = "" if judgement.is_failure else " (allowed)"
    yield f"{judgement.client}: {judgement.count:,} {judgement.kind}{severity}: {judgement.words}"
    for finding in judgement.findings[: SHOWN if judgement.is_failure else 0]:
        yield f"  {evidence(finding)}"
    if judgement.is_failure and judgement.count > SHOWN:
        yield f"  ... and {judgement.count - SHOWN:,} more"


def evidence(finding: Finding) -> str:
    """`orders-0@17 id 'order-17', line 42: the log ends at 12`."""
    partition = "" if finding.partition is None else f"-{finding.partition}"
    offset = "" if finding.offset is None else f"@{finding.offset}"
    id_ = f" id {finding.id!r}" if finding.id else ""
    line = f", line {finding.line}" if finding.line else ""
    return f"{finding.topic}{partition}{offset}{id_}{line}" + (f": {finding.words}" if finding.words else "")
