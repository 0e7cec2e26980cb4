"""A worker of Kafka Connect in distributed mode, its REST API, and the lines that its connectors copy."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.cell import Cell
from tests.clients.frameworks import wait_for
from tests.clients.java import Jars, java
from tests.support.invariants import eventually
from tools.cluster import ownership
from tools.cluster.ports import free_ports

LIMIT_S = 120.0
CALL_TIMEOUT_S = 60.0
SHOWN_LINES = 40
PAUSE_S, LINES_AT_ONCE = 0.05, 5
TIMED_OUT = "org.apache.kafka.common.errors.TimeoutException"
STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


class NotAnswered(Exception):
    """The worker does not answer, or answers an error that passes: it starts, or its group rebalances."""


class Worker:
    """One worker. Its internal topics have three replicas; `name` is the name of its Connect cluster; `jars` have Connect."""

    def __init__(self, jars: Jars, directory: Path, name: str, settings: Mapping[str, str]) -> None:
        (port,) = free_ports(1)
        self.name = name
        self._jars = jars
        self._address = f"http://127.0.0.1:{port}"
        self._settings = directory / f"{name}.properties"
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        everything = {
            "group.id": name,
            "listeners": self._address,
            "key.converter": STRING_CONVERTER,
            "value.converter": STRING_CONVERTER,
            **{f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")},
            **{f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "3",
            "status.storage.partitions": "2",
            "offset.flush.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "1000",
            **settings,
        }
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in everything.items()))

    def start(self) -> None:
        """Returns when it answers."""
        command = java(self._jars.class_path, "org.apache.kafka.connect.cli.ConnectDistributed", str(self._settings))
        with self._log.open("ab") as log:
            self._process = ownership.start(command, stdout=log, stderr=log)
        self._when_answered("GET", "/connectors", what="the worker answers")

    def kill(self) -> None:
        """By SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Lets it leave its group."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def shown(self) -> str:
        """The last lines of its log, for an error message."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])

    def create(self, connector: str, config: Mapping[str, str]) -> None:
        """Creates a connector with one task, and waits until both run."""
        body = {"tasks.max": "1", **config}
        self._when_answered("PUT", f"/connectors/{connector}/config", body, what=f"{connector} is created")
        self.wait_until_running(connector)

    def wait_until_running(self, connector: str) -> None:
        def is_running() -> bool:
            status = self._when_answered("GET", f"/connectors/{connector}/status", what=f"{connector} has a status")
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            return states == ["RUNNING", "RUNNING"]

        eventually(is_running, f"{connector} and its task run", LIMIT_S)

    def restart_task(self, connector: str) -> None:
        self._when_answered(
            "POST", f"/connectors/{connector}/tasks/0/restart", what=f"the task of {connector} restarts"
        )

    def restart_timed_out(self, connector: str) -> None:
        """As an operator does: what begins while a broker is paused may fail by a TimeoutException, and stays failed. Raises AssertionError
        if it has failed for another reason."""
        status = self._when_answered("GET", f"/connectors/{connector}/status", what=f"{connector} has a status")
        failed = [each for each in (status["connector"], *status["tasks"]) if each["state"] == "FAILED"]
        if failed:
            assert all(TIMED_OUT in each["trace"] for each in failed), failed
            path = f"/connectors/{connector}/restart?includeTasks=true&onlyFailed=true"
            self._when_answered("POST", path, what=f"{connector} restarts")

    def delete(self, connector: str) -> None:
        self._when_answered("DELETE", f"/connectors/{connector}", what=f"{connector} is deleted")

    def connectors(self) -> list[str]:
        found: list[str] = self._when_answered("GET", "/connectors", what="the worker lists its connectors")
        return found

    def _when_answered(self, method: str, path: str, body: Any = None, *, what: str) -> Any:
        """The answer, as soon as there is one that is no passing error."""

        def answer() -> list[Any]:
            try:
                return [self._call(method, path, body)]
            except NotAnswered:
                assert self._process is not None
                assert self._process.poll() is None, f"the worker has ended: {self.shown()}"
                return []

        (found,) = eventually(answer, what, LIMIT_S)
        return found

    def _call(self, method: str, path: str, body: Any) -> Any:
        request = urllib.request.Request(
            self._address + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            # 404: no status yet; 409: the group rebalances; 500 and 503: the worker starts, or its broker was killed.
            if error.code in (404, 409, 500, 503):
                raise NotAnswered(said) from None
            raise AssertionError(f"{method} {path}: {error.code} {said}") from None
        except OSError as error:
            raise NotAnswered(str(error)) from None
        return json.loads(text) if text else None


class Copying:
    """The lines of a file are copied to a topic, and from there to another file, by two connectors of a worker."""

    def __init__(self, cell: Cell, jars: Jars, topic: str, *, is_exactly_once: bool, **settings: str) -> None:
        """`settings`: more of the worker's."""
        self.lines: list[str] = []
        self.worker = Worker(
            jars,
            cell.directory,
            f"connect-{topic}",
            {
                "bootstrap.servers": cell.cluster.bootstrap_servers,
                "consumer.isolation.level": "read_committed",
                "exactly.once.source.support": "enabled" if is_exactly_once else "disabled",
                **settings,
            },
        )
        self.source, self.sink = f"source-{topic}", f"sink-{topic}"
        self._topic = topic
        self._read, self._written = cell.directory / "source.txt", cell.directory / "sink.txt"

    @property
    def readers(self) -> str:
        """The group of the sink's consumer."""
        return f"connect-{self.sink}"

    @property
    def transactional_id(self) -> str:
        """Of the source's task."""
        return f"{self.worker.name}-{self.source}-0"

    def start(self) -> None:
        self.worker.start()
        read = {"connector.class": "FileStreamSource", "file": str(self._read)}
        self.worker.create(self.source, {**read, "topic": self._topic})
        written = {"connector.class": "FileStreamSink", "file": str(self._written)}
        self.worker.create(self.sink, {**written, "topics": self._topic})

    def append(self, count: int) -> None:
        added = [f"line {number}" for number in range(len(self.lines), len(self.lines) + count)]
        with self._read.open("a") as end:
            end.write("".join(f"{line}\n" for line in added))
        self.lines += added

    @contextlib.contextmanager
    def growing(self) -> Iterator[None]:
        """Some lines come every PAUSE_S seconds: a source that is exactly once writes them in one transaction."""
        is_over = threading.Event()

        def grow() -> None:
            while not is_over.wait(PAUSE_S):
                self.append(LINES_AT_ONCE)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def copied(self) -> Sequence[str]:
        """The lines of the file at the end."""
        return self._written.read_text().splitlines() if self._written.exists() else []

    def tend(self) -> None:
        for connector in (self.source, self.sink):
            self.worker.restart_timed_out(connector)

    def wait_until_copied(self) -> None:
        expected = set(self.lines)
        what = f"{len(expected)} lines are in the sink's file"
        wait_for(lambda: set(self.copied()) >= expected, what, self.worker.shown)

    def stop(self) -> None:
        """Deletes the connectors, and lets the worker leave its group."""
        for connector in (self.source, self.sink):
            self.worker.wait_until_running(connector)
            self.worker.delete(connector)
        eventually(lambda: self.worker.connectors() == [], "both connectors are deleted", LIMIT_S)
        self.worker.stop()
