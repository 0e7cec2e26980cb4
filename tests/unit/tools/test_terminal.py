"""What commands print: text from a cluster cannot control the terminal. Numbers in options are strict."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from tests.support.cli import ottla
from tools import terminal
from tools.cli import main
from tools.clients.consume_command import Limits, _Reading
from tools.clients.records import ReadRecord
from tools.clients.stop_signals import StopSignals
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.tables import aligned
from tools.failures import ExpectedError
from tools.groups.group_views import table
from tools.numbers import FloatRange, IntRange

EVIL = "g\x1b]0;owned\x07\n2026 ERROR forged\u202e"
TOOLS = Path(terminal.__file__).parent


def test_a_line_stays_one_line_and_keeps_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.echo(f"Topic: {EVIL}\tPartitions: 1")
    terminal.echo(EVIL, err=True)
    out, err = capsys.readouterr()
    assert out == "Topic: g\\x1b]0;owned\\x07\\n2026 ERROR forged\\u202e\tPartitions: 1\n"
    assert err.count("\n") == 1


def test_columns_are_as_wide_as_the_escaped_text() -> None:
    lines = [*aligned([["GROUP", "X"], [EVIL, "1"]]), *table(["GROUP", "X"], [[EVIL, 1]], [1, 1])]
    assert all(line.isprintable() for line in lines)
    assert lines[0].index("X") == lines[1].index("1", lines[1].index("u202e"))


def test_data_is_raw_for_programs_and_escaped_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.echo_data("a\x1b\t1\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    terminal.echo_data("a\x1b\t1\n")
    assert capsys.readouterr().out == "a\x1b\t1\n" + "a\\x1b\t1\n"


def test_a_reader_that_ends_early_is_not_reported_as_a_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_pipe(_: ReadRecord) -> bytes:
        raise BrokenPipeError

    record = ReadRecord("t", 0, 0, None, "CreateTime", None, b"v", ())
    consumer: Any = SimpleNamespace(is_assigned=True, read=lambda count, wait_s: [(record, None)])
    reading = _Reading(consumer, Limits(10, 5_000, exit_at_end=False), broken_pipe, StopSignals(), commits=False)
    with (tmp_path / "output").open("w") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert reading.run() == 0
    assert not reading.has_timed_out


def test_an_error_of_a_command_is_one_line() -> None:
    result = CliRunner().invoke(main, ["group", "describe", "--state", "--members", "--format", EVIL])
    assert result.exit_code == 2
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ExpectedError("it\nis so"), r"it\nis so"),
        (OSError(28, "No space left on device", "/x\udcff"), r"/x\udcff: No space left on device"),
        (UnicodeEncodeError("utf-8", "x\udcff", 1, 2, "surrogates not allowed"), r"'x\udcff' is not UTF-8"),
    ],
)
def test_an_error_that_no_command_handled_is_one_line(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "exists", Mock(side_effect=error))
    result = ottla("cluster stop --dir x")
    assert (result.exit_code, result.stderr) == (1, f"Error: {says}\n")


def test_a_bug_of_a_command_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "exists", Mock(side_effect=ConnectionResetError))
    assert isinstance(ottla("cluster stop --dir x").exception, ConnectionResetError)


def test_commands_print_through_the_terminal_module_only() -> None:
    """The demo and the benches show their own figures; a completion script is for a shell."""
    for folder in ("admin", "clients", "cluster", "groups", "inspect"):
        for file in (TOOLS / folder).glob("*.py"):
            assert not re.search(r"click\.(echo|secho)|(?<![_\w.])print\(", file.read_text()), file


def test_every_number_option_is_strict() -> None:
    for file in TOOLS.rglob("*.py"):
        if file.name != "numbers.py":
            assert not re.search(
                r"click\.(Int|Float)(Range)?\b|click\.(INT|FLOAT)|type=(int|float)\b", file.read_text()
            ), file


@pytest.mark.parametrize("text", ["1_0", "٣", "nan", "inf", "0x1", ""])
def test_a_strict_number(text: str) -> None:
    for kind in (IntRange(0), IntRange(), FloatRange(min=0)):
        with pytest.raises(click.BadParameter, match="not a valid"):
            kind.convert(text, None, None)
    assert IntRange(1).convert(" 7", None, None) == 7
    assert FloatRange(min=0).convert("0.5", None, None) == 0.5
