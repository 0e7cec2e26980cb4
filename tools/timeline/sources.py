"""Where event logs come from: a run directory, the containers of a Compose project, or files.

A broker's log may be rotated: `events.jsonl.1` is older than `events.jsonl` (`tools/cluster/log_parts.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.cluster.fault_log import FAULT_LOG_NAME
from tools.cluster.log_parts import LogReader
from tools.cluster.processes import ClusterError
from tools.cluster.run_directory import RunDirectory
from tools.faults.containers import find_cluster
from tools.faults.docker_command import docker

EVENT_LOG_NAME = "events.jsonl"
IN_CONTAINER = f"/var/lib/ottla/{EVENT_LOG_NAME}"
OLD_PARTS = 4
BROKER_IN_NAME = re.compile(r"broker-?(\d{1,10})(?!\d)")

Row = dict[str, Any]


@dataclass
class Source:
    """One event log. `broker` None: it is `faults.jsonl`.

    `rows` gives the rows since the last call, each when it is asked for; after `rewind`, all of them again.
    """

    name: str
    broker: int | None
    rows: Callable[[], Iterator[Row]]
    rewind: Callable[[], None]

    def read(self) -> list[Row]:
        """The rows since the last call."""
        return list(self.rows())


@dataclass
class Sources:
    """All logs of a cluster. `have_one_clock`: they were written by processes on one machine."""

    logs: Sequence[Source]
    have_one_clock: bool
    close: Callable[[], None] = field(default=lambda: None)


def rows_of(lines: Iterable[bytes]) -> Iterator[Row]:
    """The rows of some lines, without a line that a crash cut off or that is being written."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def of_file(path: Path, broker: int | None) -> Source:
    reader = LogReader(path)
    return Source(str(path), broker, lambda: rows_of(reader.new_lines()), reader.rewind)


def of_directory(directory: Path) -> Sources:
    """The logs of a local cluster. Raises ClusterError if there is no cluster."""
    files = RunDirectory(directory)
    brokers = files.brokers()
    if not brokers:
        raise ClusterError(
            f"there is no cluster in {directory}: give --dir, --compose, or the event logs of the brokers"
        )
    logs = [of_file(broker.path / EVENT_LOG_NAME, broker.id) for broker in brokers]
    return Sources([of_file(files.faults.path, None), *logs], have_one_clock=True)


def of_files(paths: Sequence[Path]) -> Sources:
    """The logs in these files, or in the directories of brokers. Raises ClusterError if it is not clear which broker wrote a file."""
    found: dict[int | None, Path] = {}
    for path in paths:
        path = path / EVENT_LOG_NAME if path.is_dir() else path
        if not path.is_file():
            raise ClusterError(f"{path}: no such file")
        broker = None if path.name.startswith(FAULT_LOG_NAME.partition(".")[0]) else _broker_of(path)
        if broker in found:
            whose = f"broker {broker}" if broker is not None else "the cluster"
            raise ClusterError(
                f"{found[broker]} and {path} are both event logs of {whose}: give one file for each broker"
            )
        found[broker] = path
    return Sources([of_file(path, broker) for broker, path in found.items()], have_one_clock=False)


def _broker_of(path: Path) -> int:
    """The broker's id: from the file's name or that of its directory (`broker-2`), or from the log itself."""
    for name in (path.name, path.absolute().parent.name):
        match = BROKER_IN_NAME.search(name)
        if match:
            return int(match[1])
    for row in rows_of(LogReader(path).new_lines()):
        if row.get("kind") == "registered" and isinstance(row.get("broker"), int):
            return int(row["broker"])
    raise ClusterError(
        f"{path}: not clear which broker wrote it; name the file or its directory broker-ID, for example broker-2.jsonl"
    )


def of_compose(project: str) -> Sources:
    """The logs of the brokers' containers, also of containers that have ended. Raises ClusterError."""
    cluster = find_cluster(project)
    scratch = tempfile.TemporaryDirectory(prefix="ottla-timeline-")
    logs = []
    for broker_id in cluster.broker_ids:
        container = _ContainerLog(cluster.broker(broker_id).name, Path(scratch.name) / f"broker-{broker_id}")
        logs.append(Source(container.name, broker_id, container.rows, container.rewind))
    return Sources(logs, have_one_clock=False, close=scratch.cleanup)


class _ContainerLog:
    """The event log in one container, copied out each time that it is read: a container that has ended can be copied from."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
        self._seen = 0
        """Bytes of the newest part that were read."""
        self._is_first = True
        directory.mkdir()

    def rewind(self) -> None:
        self._seen, self._is_first = 0, True

    def rows(self) -> Iterator[Row]:
        path = self._directory / EVENT_LOG_NAME
        if self._is_first:
            self._is_first = False
            for number in range(OLD_PARTS, 0, -1):
                old = path.with_name(f"{path.name}.{number}")
                with contextlib.suppress(ClusterError):
                    docker("cp", f"{self.name}:{IN_CONTAINER}.{number}", str(old))
                    with old.open("rb") as lines:
                        yield from rows_of(lines)
                old.unlink(missing_ok=True)
        try:
            docker("cp", f"{self.name}:{IN_CONTAINER}", str(path))
        except ClusterError as problem:
            raise ClusterError(f"the event log of container {self.name} cannot be read: {problem}") from None
        with path.open("rb") as lines:
            if os.fstat(lines.fileno()).st_size < self._seen:  # it was rotated
                self._seen = 0
            lines.seek(self._seen)
            yield from rows_of(self._whole(lines))

    def _whole(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Without a line that is being written: it is read the next time."""
        for line in lines:
            if line.endswith(b"\n"):
                self._seen += len(line)
                yield line


def read_errors(path: Path) -> list[Mapping[str, Any]]:
    """What clients saw: JSON lines, or an array, of `{"time_ms", "client", "error"}`, other keys are kept. Raises ClusterError."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if text.lstrip()[:1] == "["
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except OSError as problem:
        raise ClusterError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise ClusterError(f"{path} is not JSON: {problem}") from None
    for number, row in enumerate(rows, 1):
        is_row = (
            isinstance(row, dict) and isinstance(row.get("time_ms"), int | float) and isinstance(row.get("error"), str)
        )
        if not is_row:
            raise ClusterError(
                f'{path}, row {number}: expected an object with "time_ms" and "error", for example ' + EXAMPLE
            )
    return list(rows)


EXAMPLE = '{"time_ms": 1795425580302, "client": "producer", "error": "REQUEST_TIMED_OUT"}'
