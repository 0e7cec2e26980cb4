"""The server log: clients can forge no line, repeated lines are limited, and so is the size of the file."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.process import server_log
from broker.process.rotated_file import Rotation
from broker.process.server_log import BURST, MESSAGE_LENGTH_MAX, LineLimit, PlainFormatter, ServerLogHandler
from tests.support.fake_time import FakeTime
from tools.cluster.log_parts import parts_of

EVIL = "c\x1b[31m\r\n2026-01-01T00:00:00.000Z ERROR broker: forged\u2028\x9b2J\u202e\udc80"
ROOT = Path(server_log.__file__).parents[2]


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("broker.x", logging.INFO, "x.py", 7, message, args, info)


def test_a_message_is_one_printable_line() -> None:
    line = PlainFormatter().format(record("closing the connection of %s: %r", EVIL, EVIL))
    assert line.isprintable()
    assert "forged" in line


def test_a_long_message_is_cut() -> None:
    line = PlainFormatter().format(record("%s", "x" * 1_000_000))
    assert len(line) < MESSAGE_LENGTH_MAX + 200
    assert "more characters" in line


def test_a_traceback_keeps_its_lines_and_forges_none() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        lines = PlainFormatter().format(record("failed", error=error)).split("\n")
    assert len(lines) > 3
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_lines_of_one_kind_are_limited_and_counted() -> None:
    time = FakeTime()
    limit = LineLimit(time.monotonic)
    admitted = [limit.admit(record("closing %s", number)) for number in range(10_000)]
    assert admitted.count(None) == 10_000 - BURST
    other = logging.LogRecord("broker.x", logging.INFO, "x.py", 8, "another kind", None, None)
    assert limit.admit(other) == 0, "other kinds are not held up"
    (told,) = limit.omitted()
    assert told.getMessage() == "and 9,900 more lines like this one: closing %s"
    assert limit.omitted() == []
    for _ in range(50):
        limit.admit(record("closing"))
    time.now += 3
    assert [limit.admit(record("closing")) for _ in range(4)] == [50, 0, 0, None]


def test_a_flood_writes_few_lines_and_says_how_many_it_omitted(capfd: pytest.CaptureFixture[str]) -> None:
    handler = ServerLogHandler()
    handler.limit = LineLimit(FakeTime().monotonic)
    for number in range(5000):
        handler.handle(record("closing the connection of %s", number))
    handler.report_omitted()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == BURST + 1
    assert "and 4,900 more lines like this one" in lines[-1]


def test_a_message_that_cannot_be_formatted_raises_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ServerLogHandler().handle(record("%d\n", "no number"))
    assert "this message cannot be formatted:" in capfd.readouterr().err


def test_a_write_error_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    handler = ServerLogHandler()
    handler.on_failure = told.append

    def full(_: int, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            handler.handle(record("x"))
    handler.handle(record("x"))
    assert told == ["full"]


def test_the_file_is_rotated_with_the_output_of_libraries(tmp_path: Path) -> None:
    """In a process of its own: the handler takes its descriptors 1 and 2."""
    path = tmp_path / "server.log"
    code = (
        "import logging, os; from pathlib import Path; from broker.process.server_log import *\n"
        "from broker.process.rotated_file import Rotation\n"
        f"handler = ServerLogHandler(Path({str(path)!r}), Rotation(2000, 2))\n"
        "for n in range(150):\n"
        "    handler.handle(logging.LogRecord('b', 20, 'x', n, 'line %d', (n,), None)); os.write(1, b'printed\\n')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    assert [part.name for part in parts_of(path)] == ["server.log.2", "server.log.1", "server.log"]
    assert all(part.stat().st_size < 2200 for part in parts_of(path))
    newest = path.read_text() + (tmp_path / "server.log.1").read_text()
    assert newest.count("printed") >= 20
    assert "line 149" in path.read_text()


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "server.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        ServerLogHandler(tmp_path / "server.log", Rotation(1, 1))
    assert not (tmp_path / "target").exists()


def test_a_fifo_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "server.log")
    with pytest.raises(OSError, match="No such device or address"):
        ServerLogHandler(tmp_path / "server.log")
