"""A Spark standalone cluster of this machine: a master and workers, from the package pyspark, on free ports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from tools.cluster.java import find_java
from tools.cluster.ports import LOCAL_HOST, free_ports
from tools.replay.run.spark_process import JVM_OPTIONS, processes_of_session, signal_group, write_java_home

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.1
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"


class StandaloneSpark:
    """Use it in a `with`: inside, `url` is the master's, and all workers have registered."""

    def __init__(self, directory: Path, workers: int, cores: int = 1, memory: str = "1g") -> None:
        """`cores` and `memory` of each worker. Logs and work are in `directory`."""
        self._directory = directory
        self._workers = workers
        self._cores = cores
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        """Raises JavaNotFound, NoFreePorts, RuntimeError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_java_home(self._directory / "java-home", Path(find_java()))
        master, page, *pages = free_ports(2 + self._workers)
        self.url = f"spark://{LOCAL_HOST}:{master}"
        try:
            self._start("master", MASTER_CLASS, "--host", LOCAL_HOST, "--port", str(master), "--webui-port", str(page))
            self._wait_for("master", "I have been elected leader")
            for number, port in enumerate(pages):
                work = self._directory / f"work-{number}"
                size = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(work))
                options = ("--host", LOCAL_HOST, "--webui-port", str(port), *size)
                self._start(f"worker-{number}", WORKER_CLASS, *options, self.url)
            for number in range(self._workers):
                self._wait_for(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            signal_group(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                signal_group(process.pid, signal.SIGKILL)
                process.wait()
        # Executors and their Python workers are in groups of their own.
        for process in self._processes:
            for pid in processes_of_session(process.pid):
                kill(pid)
        self._processes.clear()

    def executors(self) -> list[int]:
        """The pids of the executors that run, those of the first worker first."""
        return [
            pid
            for process in self._processes[1:]
            for pid in processes_of_session(process.pid)
            if EXECUTOR_CLASS in command_line(pid)
        ]

    def _start(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {
            "JAVA_HOME": str(self._directory / "java-home"),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": LOCAL_HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [home / "bin" / "spark-class", *arguments],
                    env=environment,
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait_for(self, name: str, line: str) -> None:
        log = self._directory / f"{name}.log"
        deadline = time.monotonic() + START_TIMEOUT_S
        while line not in log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Spark's {name} did not start in {START_TIMEOUT_S:.0f} s; see {log}")
            time.sleep(POLL_S)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def command_line(pid: int) -> str:
    """Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
