"""The commands of `ottla replay trace`: what they print, and what they refuse in one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.small_traces import as_given, fetch, produce, rows_of, written
from tools.replay.traces.trace_commands import trace


def run(line: str) -> Result:
    return CliRunner().invoke(trace, shlex.split(line))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "load", [produce(0, 0), fetch(1500, 1), produce(3000, 2)])
    return tmp_path


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_a_table_becomes_a_trace_that_is_changed_and_shown(here: Path) -> None:
    (here / "events.csv").write_text("ts,who\n1000,a\n3000,b\n2500,a\n")
    imported = "import table events.csv --out a --time-column ts --time-unit ms --key-column who --topic t"
    for line, says in (
        (f"{imported} --partitions 2 --group g --acks 1", "a: 3 events in 3 produce requests"),
        ("cut a --out c --from 500ms --op produce", "c: 2 rows"),
        ("merge load c --out d", "d: 5 rows"),
        ("check d", "d: 5 rows, 0 findings"),
    ):
        result = run(line)
        assert (result.exit_code, result.output) == (0, f"{says}\n")
    assert rows_of(here / "c", "time_ns", "topic", "acks") == [(1000, "t", 1), (1500, "t", 1)]
    assert [load["topic"] for load in json.loads(run("show d --json").output)["loads"]] == ["t", "t"]
    assert run("show d").output.startswith("d: merged from a test; cut of imported from events.csv\n")


def test_findings_are_printed_and_make_the_exit_code_1(here: Path) -> None:
    as_given(here / "bad", [produce(0, number, acks=7) for number in range(21)])
    result = run("check bad")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "row 1: acks: 7 is none of -1, 0, 1"
    assert lines[-2:] == ["and 1 more", "bad: 21 rows, 21 findings"]


IMPORT = "import table events.csv --out new --time-column ts"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("show no", 1, "Error: no: no such trace"),
        ("check .", 1, "Error: . is not a trace: the directory has no *.parquet file"),
        ("cut load --out load", 1, "Error: load exists already; remove it, or choose another --out"),
        (
            "cut load --out new --topic no",
            1,
            "Error: load has no row with topic no in this part, so new was not written",
        ),
        ("cut load --out new --from soon", 2, "'soon' is not a duration"),
        ("cut load --out new --from 2s --to 2s", 2, "--to must be after --from"),
        ("merge load --out new", 2, "give at least two traces"),
        ("flights --out new --start-day 2013-12-31 --days 2", 1, "Error: 2 day(s) from 2013-12-31 are not all in 2013"),
        (IMPORT, 2, "use either --topic or --topic-column"),
        (f"{IMPORT} --topic 'a b'", 2, "'a b' is not a topic name"),
        (f"{IMPORT} --topic t --topic-column c", 2, "use either --topic or --topic-column"),
        (f"{IMPORT} --topic t --group g", 2, "need --partitions"),
        (f"{IMPORT} --topic t --partitions 1 --group g --consumers 0", 2, "--group needs --consumers of at least 1"),
        (f"{IMPORT} --topic t --time-zone Mars", 2, "'Mars' is not a time zone"),
        (f"{IMPORT} --topic t --value-columns a,,b", 2, "expected names with commas"),
        (f"{IMPORT} --topic t --compression-ratio 2", 2, "--compression-ratio needs --compression"),
        (f"{IMPORT} --topic t", 1, "/events.csv: no such file"),
    ],
)
def test_what_is_refused(here: Path, line: str, code: int, says: str) -> None:
    result = run(line)
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert code == 2 or result.output.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["load"]
