"""An interrupt ends a command with 128 + its number, whenever it comes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import click
import pytest

from tools import interrupts
from tools.failures import guarded
from tools.interrupts import Interrupted, ignore_from_now, interruptible

INTERRUPTS_AN_IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background inherits that it is ignored
module = sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
from tools.cli import main
main()
"""


@pytest.mark.parametrize(
    "module", ["tools.replay.replay_commands", "tools.replay.traces.schema", "tools.replay.run.driver"]
)
def test_an_interrupt_during_imports_is_exit_code_130(module: str) -> None:
    arguments = ["replay", "run", "none", "--bootstrap-server", "127.0.0.1:1"]
    command = [sys.executable, "-c", INTERRUPTS_AN_IMPORT, module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", interrupts.SIGNALS, ids=lambda number: number.name)
def test_the_exit_code_tells_the_signal(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        guarded(lambda: signal.raise_signal(number) or 0)()
    assert end.value.code == 128 + number
    assert capsys.readouterr().err == f"\n{number.name}: everything that was started has been stopped.\n"
    assert signal.getsignal(number) is before


def test_a_swallowed_interrupt_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "AGAIN_S", 0.05)

    def work() -> None:
        with contextlib.suppress(Interrupted):  # as a destructor does it
            signal.raise_signal(signal.SIGTERM)
        time.sleep(10)

    with interruptible(), pytest.raises(Interrupted, match="SIGTERM"):
        work()


def test_nothing_interrupts_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "AGAIN_S", 60.0)
    with interruptible():
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        ignore_from_now()
        signal.raise_signal(signal.SIGINT)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_error_is_one_line() -> None:
    def work() -> int:
        raise OSError("the disk is full")

    with pytest.raises(click.ClickException, match="the disk is full"):
        guarded(work)()
