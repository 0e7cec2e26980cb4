"""`tests/run.py`: every group runs, and a group that fails makes the run fail."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from broker import compiled
from tests import repeats, run
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


def test_a_group_that_cannot_be_started_makes_the_run_fail(capfd: pytest.CaptureFixture[str]) -> None:
    groups = [Group("missing", ("/nonexistent/pytest",)), Group("second", PASSES)]
    assert Runner(groups).run() == 1
    said = capfd.readouterr().out
    assert "DID NOT RUN  missing" in said
    assert "passed       second" in said


def test_quick_and_thorough_together_are_everything() -> None:
    for runs, only in run.ONLY.items():
        groups = [group for group in run.groups_of(runs) if group.name != "compiled"]
        commands = [group.command for group in groups if group.paths]
        assert all(command[command.index("-m", 3) + 1] == only for command in commands)
        given = Counter(path for group in groups for path in group.paths)
        assert max(given.values()) == 1
        wanted = {
            str(path.relative_to(run.REPOSITORY))
            for path in (run.REPOSITORY / "tests").glob("*/test_*.py")
            if runs != "quick" or (path.parent.name not in ("clients", "compose") and path.name not in run.ON_SPARK)
        }
        of_directories = {path for path in wanted if str(Path(path).parent) in given}
        assert wanted == of_directories | (given.keys() & wanted)


def test_a_thorough_run_repeats_tests_on_compiled_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "form", lambda: (True, "2 modules"))
    (again,) = [group for group in run.groups_of("thorough") if group.name == "compiled"]
    assert again.command[:3] == ("env", "--unset", compiled.SWITCH)
    assert again.command[again.command.index("-m", 6) + 1] == "not thorough or (kafka and thorough and not release)"
    assert again.paths
    assert all((run.REPOSITORY / path).exists() for path in again.paths)
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
    monkeypatch.setattr(run, "versions", lambda: {"kcat": "1.7.1"})
    monkeypatch.setattr(run.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert run.main([runs]) == 0
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ, "processes that the tests start find compiled modules"
    summary = capfd.readouterr().out.rpartition("brokers: ")[2]
    assert summary.startswith("plain Python")
    assert ("SKIPPED the tests on compiled brokers" in summary) == (runs == "thorough")
    assert "\nkcat: 1.7.1\n" in summary


FAILS_AT = """
import os

def test_seldom(count_of):
    print("chaos: seed 462, 30 rounds")
    assert count_of("seldom") > 1
    assert os.environ["CHAOS_SEED"] == "462"
    assert "OTTLA_TESTS_END" not in os.environ

def test_always():
    assert {always}

def test_good():
    pass
"""
COUNTS = """
import pytest
from pathlib import Path

@pytest.fixture
def count_of():
    def count(name):
        file = Path(__file__).with_name(name)
        file.write_text((file.read_text() if file.exists() else "") + ".")
        return len(file.read_text())
    return count
"""


def pytest_group(directory: Path, always: str) -> Group:
    """Of three tests one fails the first time only, and one if `always` is "False"."""
    (directory / "test_it.py").write_text(FAILS_AT.format(always=always))
    (directory / "conftest.py").write_text(COUNTS)
    command = (sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={directory}", str(directory))
    return Group("some", command[:-1], command[-1:])


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "REPOSITORY", tmp_path)
    monkeypatch.setattr(repeats, "TIMES", 2)  # each repetition starts a pytest
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it starts sooner
    monkeypatch.setenv("OTTLA_TESTS_END", "0")
    return tmp_path


@pytest.mark.thorough
def test_a_flaky_test_does_not_fail_a_lenient_run(in_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    group = pytest_group(in_directory, always="True")
    assert Runner([group], is_lenient=True).run() == 0
    summary = capfd.readouterr().out.rpartition("brokers: ")[2]
    found = re.search(
        r"^FLAKY test_it.py::test_seldom: .*2 times alone; seed 462; output: (.*)$", summary, re.MULTILINE
    )
    assert found
    assert "test_seldom" in (in_directory / found[1]).read_text()
    assert len((in_directory / "seldom").read_text()) == 1 + repeats.TIMES
    assert "PASSED after" in summary


def test_without_leniency_it_does(in_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert Runner([pytest_group(in_directory, always="True")]).run() == 1
    summary = capfd.readouterr().out.rpartition("brokers: ")[2]
    assert "FLAKY" not in summary
    assert "\nsome: E       AssertionError: " in summary, "the last lines say why it failed"
    assert len((in_directory / "seldom").read_text()) == 1


@pytest.mark.thorough
def test_a_test_that_fails_again_fails_a_lenient_run(in_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    group = pytest_group(in_directory, always="False")
    assert Runner([group], is_lenient=True).run() == 1
    summary = capfd.readouterr().out.rpartition("brokers: ")[2]
    assert "FAILED test_it.py::test_always: failed again alone, after 0 repetitions" in summary
    assert "FAILED after" in summary


@pytest.mark.parametrize("other", [FAILS, (sys.executable, "-c", "raise SystemExit(3)")])
def test_nothing_is_repeated_if_the_run_has_another_failure(
    in_directory: Path, other: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    groups = [pytest_group(in_directory, always="True"), Group("other", other)]
    assert Runner(groups, is_lenient=True).run() == 1
    assert "\nno test was repeated: other failed by more than tests\n" in capfd.readouterr().out
    assert len((in_directory / "seldom").read_text()) == 1


def test_an_unknown_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["all"]) == 2
    assert "quick|thorough|release" in capsys.readouterr().err
