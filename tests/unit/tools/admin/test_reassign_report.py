"""A watched move on a terminal, in a log and for a script."""

from __future__ import annotations

import json

import pytest

from protocol.types import TopicPartition
from tools.admin.reassign_progress import Overall, Progress
from tools.admin.reassign_report import BarReport, JsonReport, LineReport, watching

PARTITION = TopicPartition("orders", 0)
HALF = Overall(Progress(500, 1000), 0, 1, 100.0, 5.0)
TEXT = "0 of 1 partitions, 50%, 500 B of 1000 B, 100 B/s, about 5 s left"


def test_lines_only_for_changes(capsys: pytest.CaptureFixture[str]) -> None:
    report = LineReport()
    for _ in range(3):
        report.progressed(HALF, [])
    report.progressed(HALF, [3])
    assert capsys.readouterr().out.splitlines() == [TEXT, f"{TEXT}; waiting for broker 3, which is down"]


def test_json_lines_only_for_changes(capsys: pytest.CaptureFixture[str]) -> None:
    report = JsonReport()
    report.batch_started(1, 1, [PARTITION])
    for _ in range(3):
        report.progressed(HALF, [])
    started, progress = map(json.loads, capsys.readouterr().out.splitlines())
    assert started == {"event": "started", "batch": 1, "batches": 1, "partitions": ["orders-0"]}
    assert progress == {
        "event": "progress",
        "partitions_done": 0,
        "partitions": 1,
        "bytes_moved": 500,
        "bytes_left": 500,
        "bytes_total": 1000,
        "percent": 50.0,
        "bytes_per_second": 100,
        "eta_s": 5.0,
        "dead_brokers": [],
    }


@pytest.mark.parametrize(
    ("is_terminal", "output", "kind"),
    [
        (True, "text", BarReport),
        (True, "json", JsonReport),
        (False, "text", LineReport),
        (False, "json", JsonReport),
    ],
)
def test_the_report_depends_on_format_and_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, output: str, kind: type
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    with watching(output) as report:
        assert type(report) is kind
