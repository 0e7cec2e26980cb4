"""One finding: a record, a commit or a transaction that is not as it should be. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tools.judge.reports import Report


@dataclass(frozen=True, slots=True)
class Finding:
    """`line`: of the report that shows it; `at`: when it was read."""

    kind: str
    at: float
    line: str
    topic: str
    partition: int | None
    offset: int | None
    id: str
    words: str


def finding(kind: str, report: Report, words: str, partition: int | None = None, offset: int | None = None) -> Finding:
    """About what a report says. `partition`, `offset`: if they are not the report's."""
    return Finding(
        kind,
        report.at,
        report.line,
        report.topic,
        report.partition if partition is None else partition,
        report.offset if offset is None else offset,
        report.id,
        words,
    )
