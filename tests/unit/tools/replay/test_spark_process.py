"""The Java that Spark is given, its environment, and the signals that end a replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.interrupts import Interrupted, interruptible
from tools.replay.run.spark_process import job_environment, processes_of_session, write_java_home


def test_java_is_run_without_the_module_that_a_jre_lacks(tmp_path: Path) -> None:
    java = tmp_path / "a real java"
    java.write_text('#!/bin/sh\nfor argument do echo "[$argument]"; done\n')
    java.chmod(0o755)
    home = write_java_home(tmp_path / "home", java)
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-opens=x=y", "", 'Main "$x"']
    shown = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [f"[{argument}]" for argument in arguments if "incubator" not in argument]


def test_the_environment_is_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/another-spark")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = job_environment(tmp_path / "home", tmp_path / "with space")
    assert "SPARK_HOME" not in environment
    assert environment["JAVA_HOME"] == str(tmp_path / "home")
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environment["PYTHONPATH"].endswith(f"{os.pathsep}/somewhere")
    assert environment["PYSPARK_SUBMIT_ARGS"].endswith("pyspark-shell")


def test_processes_of_a_session() -> None:
    """Whatever other processes are called: a broker has the name of its directory."""
    odd = "open('/proc/self/comm', 'wb').write(b'\\xff) Z 1'); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", odd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert processes_of_session(child.pid) == [child.pid]
    finally:
        child.communicate()
    assert processes_of_session(child.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_one_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name) as raised, interruptible():
        signal.raise_signal(number)
    assert raised.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
