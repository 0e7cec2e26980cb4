"""A worker of Kafka Connect in distributed mode, and its REST API."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.clients.java import Jars, java
from tests.support.invariants import eventually
from tools.cluster import ownership
from tools.cluster.ports import free_ports

LIMIT_S = 120.0
CALL_TIMEOUT_S = 60.0
SHOWN_LINES = 40
STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


class NotAnswered(Exception):
    """The worker does not answer, or answers an error that passes: it starts, or its group rebalances."""


class Worker:
    """One worker. Its internal topics have three replicas; `name` is the name of its Connect cluster; `jars` have Connect."""

    def __init__(self, jars: Jars, directory: Path, name: str, settings: Mapping[str, str]) -> None:
        (port,) = free_ports(1)
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
