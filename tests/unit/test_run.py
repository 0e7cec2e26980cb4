"""`tests/run.py`: every group runs, and a group that fails makes the run fail."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from broker import compiled
from tests import run
from tests.run import Group, Runner

PASSES = (sys.executable, "-c", "print('=== 3 passed, 1 skipped in 0.5s ==='); print('SKIPPED [1] no kcat')")
FAILS = (sys.executable, "-c", "print('FAILED test_a'); raise SystemExit(1)")
SELECTS_NOTHING = (sys.executable, "-c", f"raise SystemExit({run.NO_TESTS_SELECTED})")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOGS", tmp_path / "logs")


def test_all_pass(capfd: pytest.CaptureFixture[str]) -> None:
    groups = [Group("first", PASSES), Group("second", SELECTS_NOTHING), Group("third", PASSES)]
    assert Runner(groups).run() == 0
    said = capfd.readouterr().out
    assert "PASSED after" in said
    assert "FAILED" not in said
    assert said.count("3 passed, 1 skipped\n") == 2
    assert said.count("    SKIPPED [1] no kcat\n") == 2, "the summary says what was skipped, and why"


def test_if_one_group_fails_the_others_still_run(capfd: pytest.CaptureFixture[str]) -> None:
    groups = [Group("first", FAILS), Group("second", PASSES), Group("third", PASSES)]
    assert Runner(groups).run() == 1
    said = capfd.readouterr().out
    assert "FAILED (1)   first" in said
    assert "    FAILED test_a\n" in said
    assert "passed       second" in said
    assert "passed       third" in said
    assert "FAILED after" in said


def test_quick_and_thorough_together_are_everything() -> None:
    for runs, only in (("quick", "not thorough"), ("thorough", "thorough")):
        groups = [group for group in run.groups_of(runs) if group.name != "compiled"]
        commands = [group.command for group in groups if "pytest" in group.command]
        assert all(command[command.index("-m", 3) + 1] == only for command in commands)
        paths = {word for command in commands for word in command if word.startswith("tests/")}
        directories = {f"tests/{path.parent.name}" for path in Path(run.__file__).parent.glob("*/test_*.py")}
        assert directories <= paths | {"tests/clients", "tests/compose"}
        left_out = {word.removeprefix("--ignore=") for command in commands for word in command if "--ignore=" in word}
        assert left_out
        assert left_out <= paths


def test_a_thorough_run_repeats_tests_on_compiled_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "form", lambda: (True, "2 modules"))
    (again,) = [group.command for group in run.groups_of("thorough") if group.name == "compiled"]
    assert again[:3] == ("env", "--unset", compiled.SWITCH)
    assert again[again.index("-m", 6) + 1] == "not thorough or kafka"
    assert all((run.REPOSITORY / word).exists() for word in again if word.startswith("tests/"))
    assert "compiled" not in [group.name for group in run.groups_of("quick")]
    monkeypatch.setattr(compiled, "form", lambda: (False, "plain Python"))
    assert "compiled" not in [group.name for group in run.groups_of("thorough")]


@pytest.mark.parametrize("runs", ["quick", "thorough"])
def test_the_summary_says_in_which_form_the_brokers_ran(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], runs: str
) -> None:
    monkeypatch.setenv(compiled.SWITCH, "0")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(run, "groups_of", lambda _: [Group("first", PASSES)])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert run.main([runs]) == 0
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ, "processes that the tests start find compiled modules"
    summary = capfd.readouterr().out.rpartition("brokers: ")[2]
    assert summary.startswith("plain Python")
    assert ("SKIPPED the tests on compiled brokers" in summary) == (runs == "thorough")


def test_an_unknown_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["all"]) == 2
    assert "quick|thorough" in capsys.readouterr().err
