"""Two sides of runs: what is noise, what differs, and the command's exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from click.testing import CliRunner

from tests.support import report_data
from tests.support.replay_runs import a_plan
from tools.replay.run.compare_runs_command import compare
from tools.replay.run.permutations import LEVEL, adjusted, can_tell, deals, interval
from tools.replay.run.plan import OutputDirectory, write_json


def write_analysed_run(
    directory: Path, latency: float = 1.0, plan: dict[str, Any] | None = None, lost: int = 0
) -> Path:
    """`latency`: factor of the latencies of produce."""
    output = OutputDirectory(directory)
    output.write_plan(a_plan(directory, **{"trace_hash": "load", **(plan or {})}))
    analysis = report_data.analysis() | {"outages": [], "end_to_end": None}
    points = analysis["latency_ms"]["produce"]["scheduled"]
    analysis["latency_ms"]["produce"]["scheduled"] = {name: latency * ms for name, ms in points.items()}
    write_json(output.analysis, analysis)
    write_json(output.verdict, report_data.verdict(lost=lost))
    return directory


def side(directory: Path, latencies: Sequence[float]) -> list[str]:
    """The runs of a side, as words of the command."""
    runs = [write_analysed_run(directory / f"run-{at}", latency) for at, latency in enumerate(latencies, start=1)]
    return [str(run) for run in runs]


def compared(out: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, rows by metric, what was printed before the report's name."""
    done = CliRunner().invoke(compare, [*arguments, "--out", str(out)])
    found = json.loads((out / "comparison.json").read_text()) if (out / "comparison.json").exists() else {"rows": []}
    return done.exit_code, {row["metric"]: row for row in found["rows"]}, done.output.partition("Report ")[0]


NOISE = (1.0, 1.02, 0.99, 1.01, 0.98)


def test_five_runs_a_side_show_a_change_of_a_fifth_in_one_direction_only(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", NOISE), side(tmp_path / "b", [1.2 * factor for factor in NOISE])
    code, rows, output = compared(tmp_path / "out", "--a", *a, "--b", *b)
    assert {name for name, row in rows.items() if row["worse"]} == {"produce.p50", "produce.p99", "produce.p999"}
    low, high = rows["produce.p99"]["interval"]
    assert low < 0.2 < high
    assert low > 0
    assert code == 1
    assert "FAILED" in output
    # The directory of --repeat stands for its runs.
    code, rows, output = compared(tmp_path / "out", str(tmp_path / "b"), str(tmp_path / "a"))
    assert {name for name, row in rows.items() if row["differs"]} == {"produce.p50", "produce.p99", "produce.p999"}
    assert code == 0
    assert "PASSED" in output


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", NOISE), side(tmp_path / "b", NOISE[::-1])
    code, rows, _ = compared(tmp_path / "out", "--a", *a, "--b", *b, "--threshold", "0%")
    assert code == 0
    assert not [row for row in rows.values() if row["differs"]]


@pytest.mark.parametrize(
    ("runs", "words"), [(1, "one run each: no statement"), (3, "3 and 3 runs: no statement")], ids=["one", "three"]
)
def test_too_few_runs_are_no_statement(tmp_path: Path, runs: int, words: str) -> None:
    a, b = side(tmp_path / "a", [1.0] * runs), side(tmp_path / "b", [200.0] * runs)
    code, rows, output = compared(tmp_path / "out", "--a", *a, "--b", *b)
    assert code == 2
    assert words in output
    assert not [row for row in rows.values() if row["differs"]]


@pytest.mark.parametrize(
    ("limit", "code"),
    [("produce.p99:10%", 1), ("produce.p99:30%", 0), ("fetch.p99:10%", 0), ("end_to_end.p99:10%", 2)],
)
def test_fail_if_worse_looks_at_its_metric_only(tmp_path: Path, limit: str, code: int) -> None:
    a, b = side(tmp_path / "a", NOISE), side(tmp_path / "b", [1.2 * factor for factor in NOISE])
    assert compared(tmp_path / "out", "--a", *a, "--b", *b, "--fail-if-worse", limit)[0] == code


def test_other_loads_are_refused_and_named(tmp_path: Path) -> None:
    a = [str(write_analysed_run(tmp_path / "a"))]
    b = [
        str(
            write_analysed_run(
                tmp_path / "b", plan={"trace_hash": "other", "speeds": [2.0], "group_protocol": "consumer"}
            )
        )
    ]
    code, rows, output = compared(tmp_path / "out", *a, *b)
    assert (code, rows) == (2, {})
    assert "Different load: trace: 0 operations, load in" in output
    assert f"Different load: speed: 1x in {a[0]}; 2x in {b[0]}" in output
    assert f"Different load: groups: classic in {a[0]}; consumer in {b[0]}" in output
    code, rows, _ = compared(tmp_path / "out", *a, *b, "--allow-different")
    assert rows["produce.p99"]["change"] == 0
    assert "Different load: speed" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_that_lost_records_fails_the_comparison(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", NOISE), side(tmp_path / "b", NOISE)
    write_analysed_run(Path(b[2]), lost=3)
    code, _, output = compared(tmp_path / "out", "--a", *a, "--b", *b)
    assert code == 1
    assert "B delivered: run-3: 3 acknowledged records are not in the log" in output


def test_a_run_whose_generator_was_the_limit_says_nothing_of_the_cluster(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", NOISE), side(tmp_path / "b", NOISE)
    path = OutputDirectory(Path(b[4])).analysis
    analysis = json.loads(path.read_text())
    write_json(path, analysis | {"generator": analysis["generator"] | {"is_limited": True}})
    code, _, output = compared(tmp_path / "out", "--a", *a, "--b", *b)
    assert code == 2
    assert "NOT VERIFIED  B delivered: run-5: generator limited" in output


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["a", "b", "--threshold", "5"], 2, "'5' is not a percentage, such as 5%"),
        (["a", "b", "--threshold", "-1%"], 2, "x>=0"),
        (["a", "b", "--fail-if-worse", "produce.p98:1%"], 2, "there is no 'produce.p98'; there are produce.p50"),
        (["a"], 2, "name two directories, A and B, or runs of both sides with --a and --b"),
        (["--a", "a"], 2, "name two directories, A and B, or runs of both sides with --a and --b"),
        (["a", "b"], 1, "is not the directory of a replay: it has no plan.json"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(compare, options)
    assert done.exit_code == code
    assert words in done.output


def test_a_damaged_analysis_is_named(tmp_path: Path) -> None:
    first, second = write_analysed_run(tmp_path / "a"), write_analysed_run(tmp_path / "b")
    (second / "analysis.json").write_text("{")
    code, rows, output = compared(tmp_path / "out", str(first), str(second))
    assert (code, rows) == (1, {})
    assert f"{second} has no analysis that can be read" in output


def test_of_equal_sides_at_most_one_in_twenty_differs_in_any_figure() -> None:
    random, dealt, rounds = numpy.random.default_rng(7), deals(5, 5), 300
    called = sum(bool((adjusted(random.lognormal(0, 0.1, (12, 10)), dealt) <= LEVEL).any()) for _ in range(rounds))
    assert called <= rounds * (LEVEL + 3 * (LEVEL / rounds) ** 0.5)


def test_the_interval_contains_the_true_difference() -> None:
    random, dealt, rounds = numpy.random.default_rng(8), deals(5, 5), 300
    within = 0
    for _ in range(rounds):
        values = random.normal(10, 1, 10)
        values[5:] += 2
        low, high = interval(values, dealt) or (0, 0)
        within += low <= 2 <= high
    assert within >= rounds * (0.95 - 3 * (LEVEL / rounds) ** 0.5)


def test_which_numbers_of_runs_can_tell() -> None:
    assert [can_tell(*runs) for runs in ((1, 1), (3, 3), (3, 4), (4, 4), (2, 5))] == [False, False, True, True, True]
    same, shifted = [1.0] * 10, [1.0] * 5 + [2.0] * 5
    assert adjusted(numpy.array([same, shifted]), deals(5, 5)).tolist() == [1, 2 / 252]
    assert interval(numpy.arange(6.0), deals(3, 3)) is None
