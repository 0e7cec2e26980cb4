"""Two runs side by side: what is noise, what differs, and the command's exit codes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from tests.support.replay_runs import a_plan
from tools.replay.run.analysis import LATENCIES
from tools.replay.run.compare_runs_command import compare
from tools.replay.run.comparison import block_weights
from tools.replay.run.histograms import GROWTH
from tools.replay.run.plan import OutputDirectory, write_json

VERDICT = {"acknowledged": 1, "lost": 0, "duplicated": 0, "reordered": 0, "corrupted": 0, "unseen": 0}


def write_analysed_run(
    directory: Path, seed: int, latency_ms: float = 2.0, outage_s: float = 0.0, lost: int = 0, seconds: int = 60
) -> Path:
    """1000 batches a second, with latencies of an exponential distribution."""
    random = numpy.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for second in range(seconds):
        latencies = random.exponential(latency_ms / math.log(2), 1000)
        buckets = numpy.round(numpy.log(numpy.maximum(latencies * 1e6, 1000)) / math.log(GROWTH)).astype(int)
        for bucket, operations in zip(*numpy.unique(buckets, return_counts=True), strict=True):
            rows.append({"op": "produce", "interval": second, "bucket": int(bucket), "operations": int(operations)})
    output = OutputDirectory(directory)
    output.write_plan(a_plan(directory, trace_rows=1000 * seconds))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=LATENCIES), output.latencies)
    counts = dict.fromkeys(("due", "sent", "acknowledged", "records"), 1000)
    counts |= {"bytes": 100_000, "fetched_records": 0, "fetched_bytes": 0, "failed": 0}
    counts |= dict.fromkeys(("p50_ms", "p99_ms", "max_ms", "late_p99_ms"))
    analysis = {
        "seconds": float(seconds),
        "interval_s": 1,
        "totals": {
            "operations": 1000 * seconds,
            "not_done": 0,
            "produce": {"operations": 1000 * seconds},
            "fetch": {"operations": 0},
        },
        "over_time": [{"second": second} | counts for second in range(seconds)],
        "outages": [{"seconds": outage_s}] if outage_s else [],
        "distribution": [],
        "faults": [],
    }
    write_json(output.analysis, analysis)
    write_json(output.verdict, VERDICT | {"lost": lost})
    return directory


def compared(first: Path, second: Path, out: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, rows by metric and unit, what was printed."""
    done = CliRunner().invoke(compare, [str(first), str(second), "--out", str(out), *options])
    found = json.loads((out / "comparison.json").read_text()) if (out / "comparison.json").exists() else {"rows": []}
    printed = done.output.partition("Report ")[0]
    return done.exit_code, {f"{row['metric']} {row['unit']}": row for row in found["rows"]}, printed


def test_the_same_load_twice_does_not_differ(tmp_path: Path) -> None:
    first, second = write_analysed_run(tmp_path / "a", 1), write_analysed_run(tmp_path / "b", 2, outage_s=0.3)
    code, rows, _ = compared(first, second, tmp_path / "out", "--threshold", "0%")
    assert code == 0
    assert not [name for name, row in rows.items() if row["differs"]]
    p50 = rows["produce latency p50 ms"]
    assert p50["a"] == pytest.approx(2, rel=0.02)
    assert p50["a_interval"][0] <= p50["a"] <= p50["a_interval"][1]
    assert rows["produced records/s"]["a"] == 1000


@pytest.mark.parametrize(
    ("changed", "worse"),
    [
        ({"latency_ms": 3.0}, {f"produce latency {name} ms" for name in ("p50", "p99", "p99.9")}),
        ({"outage_s": 1.5}, {"longest outage s"}),
        ({"lost": 1}, {"lost records"}),
    ],
    ids=["latency", "outage", "lost"],
)
def test_what_is_worse_has_exit_code_1_and_what_is_better_0(
    tmp_path: Path, changed: dict[str, Any], worse: set[str]
) -> None:
    first, second = write_analysed_run(tmp_path / "a", 1), write_analysed_run(tmp_path / "b", 2, **changed)
    code, rows, output = compared(first, second, tmp_path / "out")
    assert {name for name, row in rows.items() if row["worse"]} == worse
    assert code == 1
    assert output.count("worse") == len(worse)
    code, rows, _ = compared(second, first, tmp_path / "out")
    assert {name for name, row in rows.items() if row["differs"]} == worse
    assert code == 0


def test_a_change_below_the_threshold_is_none(tmp_path: Path) -> None:
    first, second = write_analysed_run(tmp_path / "a", 1), write_analysed_run(tmp_path / "b", 2, latency_ms=3.0)
    assert compared(first, second, tmp_path / "out", "--threshold", "60%")[0] == 0


def test_a_run_of_a_few_seconds_has_no_intervals(tmp_path: Path) -> None:
    first = write_analysed_run(tmp_path / "a", 1, seconds=3)
    second = write_analysed_run(tmp_path / "b", 2, seconds=3, latency_ms=4.0)
    code, rows, _ = compared(first, second, tmp_path / "out")
    assert code == 0
    assert rows["produce latency p50 ms"]["a_interval"] is None


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--threshold", "5"], 2, "'5' is not a percentage, such as 5%"),
        (["--threshold", "-1%"], 2, "x>=0"),
        ([], 1, "is not the directory of a replay: it has no plan.json"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    done = CliRunner().invoke(compare, [str(tmp_path / "a"), str(tmp_path / "b"), *options])
    assert done.exit_code == code
    assert words in done.output


def test_a_damaged_analysis_is_named(tmp_path: Path) -> None:
    first, second = write_analysed_run(tmp_path / "a", 1), write_analysed_run(tmp_path / "b", 2)
    (second / "analysis.json").write_text("{")
    code, rows, output = compared(first, second, tmp_path / "out")
    assert (code, rows) == (1, {})
    assert f"{second} has no analysis that can be read" in output


@pytest.mark.parametrize("count", [1, 5, 60, 600])
def test_each_resample_has_as_many_intervals_as_the_run(count: int) -> None:
    weights = block_weights(count, numpy.random.default_rng(0))
    assert set(weights.sum(axis=1)) == {count}
