"""tests/clients: how a program of the client matrix is driven, and one kill for all clients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.clients import Client
from tests.clients.disaster import Disaster
from tests.clients.program import Program, Unsupported

Start = Callable[[str], Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that is given as Python code."""
    programs = []

    def started(code: str) -> Program:
        client = Client("c", "Python", lambda: "1", lambda: [sys.executable, "-c", code], lambda: None)
        programs.append(Program(client, "verb", {}, tmp_path / "log", until_stdin_closes="stdin" in code))
        return programs[-1]

    yield started
    for program in programs:
        program.kill()


def test_lines_come_while_the_program_runs(start: Start) -> None:
    program = start("print('{\"a\": 1}', flush=True); import sys; sys.stdin.read(); print('{\"a\": 2}')")
    assert program.wait_for_count("a", 1) == [1]
    assert program.end() == [{"a": 1}, {"a": 2}]


def test_a_program_that_fails_is_shown(start: Start) -> None:
    program = start("import sys; print('{\"a\": 1}'); sys.exit('what went wrong')")
    with pytest.raises(AssertionError, match=r'exit code 1\n(.|\n)*"a": 1(.|\n)*what went wrong'):
        program.result()


def test_a_program_that_ends_too_early_is_not_waited_for(start: Start) -> None:
    with pytest.raises(AssertionError, match="ended with exit code 0 before it printed 2 times 'a'"):
        start("print('{\"a\": 1}')").wait_for_count("a", 2)


def test_unsupported_needs_a_reason_and_its_exit_code(start: Start) -> None:
    with pytest.raises(Unsupported, match="no zstd"):
        start('print(\'{"unsupported": "no zstd"}\'); raise SystemExit(3)').result()
    with pytest.raises(AssertionError, match="exit code 3"):
        start("raise SystemExit(3)").result()
    with pytest.raises(AssertionError, match="exit code 1"):
        start('print(\'{"unsupported": "no zstd"}\'); raise SystemExit(1)').result()


def test_the_kill_happens_once_when_all_are_ready_or_have_left() -> None:
    strikes = []
    disaster = Disaster(3, lambda: strikes.append(1))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(disaster.happen) for _ in range(2)]
        assert not any(future.done() for future in waiting)
        disaster.leave()
        for future in waiting:
            future.result(30)
    assert strikes == [1]


def test_no_kill_without_a_client() -> None:
    strikes = []
    disaster = Disaster(1, lambda: strikes.append(1))
    disaster.leave()
    assert strikes == []
