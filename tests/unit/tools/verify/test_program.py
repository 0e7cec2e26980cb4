"""The report lines of a program, from its standard output and from the file."""

from __future__ import annotations

from tools.verify.program import Reports


def test_lines_are_numbered_in_each_stream_and_only_other_lines_of_the_output_pass() -> None:
    passed: list[bytes] = []
    reports = Reports(now=lambda: 1.5, passes=passed.append)
    reports.add(b"starting\n")
    reports.add(b"@ottla produced topic=t id=a\n")
    reports.add(b"@ottla failed topic=t id=a\n", "OTTLA_REPORT")
    reports.add(b"@ottla acked topic=t\n")
    reports.add(b"what is this\n", "OTTLA_REPORT")
    reports.add(b"@ottla acked topic=t partition=0 id=order-1")  # of order-12, cut by a crash
    assert passed == [b"starting\n"]
    assert [(each.event, each.line, each.order) for each in reports.reports] == [
        ("produced", "2", 0),
        ("failed", "OTTLA_REPORT:1", 1),
    ]
    assert [line.partition(": ")[0] for line in reports.broken] == ["line 3", "line OTTLA_REPORT:2", "line 4"]
