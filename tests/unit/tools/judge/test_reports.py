"""The report lines: what is read, what passes through, and what is wrong with a broken one."""

from __future__ import annotations

import pytest

from tools.judge.reports import BrokenReport, Report, line_of, parse


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("@ottla produced topic=t id=a", Report("produced", "t", id="a")),
        ("@ottla produced topic=t partition=3 producer=p1 id=a", Report("produced", "t", 3, id="a", producer="p1")),
        ("@ottla acked topic=t partition=0 offset=17 id=order 17 = x\n", Report("acked", "t", 0, 17, "order 17 = x")),
        ("@ottla acked topic=t partition=0 offset=-1 id=a", Report("acked", "t", 0, None, "a")),
        ("@ottla acked partition=0 topic=t id=a\r\n", Report("acked", "t", 0, None, "a")),
        ("@ottla failed topic=t id=a", Report("failed", "t", id="a")),
        ("@ottla consumed group=g topic=t partition=1 offset=2 id=ü", Report("consumed", "t", 1, 2, "ü", "g")),
        ("@ottla committed group=g topic=t partition=1 offset=3", Report("committed", "t", 1, 3, group="g")),
        ("@ottla begun txn=t1", Report("begun", txn="t1")),
        ("@ottla begun txn=t1 transactional-id=p", Report("begun", txn="t1", transactional_id="p")),
        ("@ottla produced topic=t txn=t1 id=a", Report("produced", "t", id="a", txn="t1")),
        (
            "@ottla consumed group=g topic=t partition=1 offset=2 txn=t1 isolation=read_uncommitted id=a",
            Report("consumed", "t", 1, 2, "a", "g", txn="t1", isolation="read_uncommitted"),
        ),
        (
            "@ottla sent-offsets txn=t1 group=g topic=t partition=1 offset=3",
            Report("sent-offsets", "t", 1, 3, group="g", txn="t1"),
        ),
        ("@ottla committing txn=t1", Report("committing", txn="t1")),
        ("@ottla committed-txn txn=t1", Report("committed-txn", txn="t1")),
        ("@ottla aborted-txn txn=t1", Report("aborted-txn", txn="t1")),
        ("12:00:01 INFO main @ottla failed topic=t id=a", Report("failed", "t", id="a")),
        ("@ottla\tfailed topic=t id=a b", Report("failed", "t", id="a b")),
    ],
)
def test_reports(line: str, report: Report) -> None:
    assert parse(line) == report
    assert parse(line_of(report)) == report


@pytest.mark.parametrize("line", ["", "hello", "ottla acked topic=t", "a@ottla.example wrote"])
def test_other_lines(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@ottla ack topic=t id=a", "'ack' is no event; the events are produced, acked"),
        ("@ottla", "'' is no event"),
        ("@ottla produced topic=t id=a@ottla acked topic=t partition=0 id=b", "two reports are in one line"),
        ("@ottla acked topic=t offset=1 id=a", "acked needs partition=..."),
        ("@ottla acked topic=t partition=0 offset=1", "acked needs id=..."),
        ("@ottla acked topic=t partition=0 id=", "acked needs id=..."),
        ("@ottla acked topic=t partition=zero id=a", "partition=zero is not a whole number"),
        ("@ottla acked topic=t partition=-1 id=a", "partition=-1 is below 0"),
        ("@ottla consumed group=g topic=t partition=0 offset=-1 id=a", "offset=-1 is below 0"),
        ("@ottla acked topic=t partition=0 ofset=1 id=a", "acked has no field 'ofset'; its fields are topic"),
        ("@ottla acked topic=t partition=0 17 id=a", "'17' is not NAME=VALUE"),
        ("@ottla acked topic=t topic=u partition=0 id=a", "topic is there twice"),
        ("@ottla begun transactional-id=p", "begun needs txn=..."),
        ("@ottla committed-txn txn=t1 topic=t", "committed-txn has no field 'topic'; its fields are txn"),
        (
            "@ottla consumed group=g topic=t partition=0 offset=1 isolation=none id=a",
            "isolation=none is neither read_committed nor read_uncommitted",
        ),
        ("@ottla committed group=g topic=t partition=0 offset=1 id=a", "committed has no field 'id'"),
    ],
)
def test_broken_reports(line: str, reason: str) -> None:
    with pytest.raises(BrokenReport) as broken:
        parse(line)
    assert str(broken.value).startswith(reason)
