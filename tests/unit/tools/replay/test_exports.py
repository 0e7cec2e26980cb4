"""The figures of a replay for other programs."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import report_data
from tools.replay.load.task import Progress
from tools.replay.run.analysis import LATENCIES
from tools.replay.run.control import ControlServer
from tools.replay.run.exports import LiveMetrics, write_exports
from tools.replay.run.histograms import milliseconds
from tools.replay.run.plan import OutputDirectory


def test_the_latencies_as_hdrhistogram_writes_them_and_the_intervals_as_csv(tmp_path: Path) -> None:
    output, analysis = OutputDirectory(tmp_path), report_data.analysis()
    rows = [(0, 1300, 90), (1, 1300, 5), (1, 1500, 4), (0, 1600, 1)]
    latencies = [{"op": "produce", "interval": at, "bucket": b, "operations": n} for at, b, n in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(latencies, schema=LATENCIES), output.latencies)
    analysis["latency_ms"]["produce"]["scheduled"]["max"] = 8.2
    write_exports(output, analysis)
    lines = [line.split() for line in output.distributions["produce"].read_text().splitlines()]
    assert lines[0] == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    found = [[float(word) for word in line] for line in lines[2:5]]
    assert [row[0] for row in found] == [
        *(pytest.approx(milliseconds(bucket), abs=0.001) for bucket in (1300, 1500)),
        8.2,
    ]
    assert [row[1:] for row in found] == [[0.95, 95, pytest.approx(20)], [0.99, 99, pytest.approx(100)], [1.0, 100]]
    assert lines[6][:3] == ["#[Max", "=", "8.200,"], "exact, and not the middle of its bucket"
    assert output.distributions["fetch"].read_text().count("\n") == 2
    with output.over_time.open() as file:
        found_rows = list(csv.DictReader(file))
    assert [float(row["bytes"]) for row in found_rows] == [row["bytes"] for row in analysis["over_time"]]


def test_the_progress_is_served_as_prometheus_text(tmp_path: Path) -> None:
    with ControlServer(tmp_path) as control:
        control.progress |= {0: Progress(sent=3, acknowledged=2, late_ns=2_000_000), 1: Progress(sent=4, failed=1)}
        LiveMetrics(tmp_path / "replay.prom", control).write()
    text = (tmp_path / "replay.prom").read_text()
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["ottla_replay_sent_total"] == 7
    assert values["ottla_replay_failed_total"] == 1
    assert values["ottla_replay_late_seconds"] == 0.002
