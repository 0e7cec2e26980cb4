"""`tests/support/forked_commands.py`: a command is a process of its own, with its own environment, input, output and exit code."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import forked_commands


def run(*arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(arguments, stdin, timeout_s)


def test_output_errors_and_exit_codes_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage:" in shown.stdout
    unknown = run("topic", "lst")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "No such command 'lst'" in unknown.stderr
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "nowhere")
    refused = run("topic", "list")
    assert refused.returncode == 1
    assert "nowhere" in refused.stderr


def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("topic", "list", "--bootstrap-server", "127.0.0.1:1", timeout_s=0.0)
