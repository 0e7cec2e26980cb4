"""Starts, watches and ends a recording of a whole cluster (RPL-5). The settings `recorder.*` of all brokers are the switch."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.admin.cluster_view import ClusterView
from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, Entity
from tools.admin.kafka_admin import KafkaAdmin
from tools.failures import AdminError
from tools.replay.recording.broker_pages import BrokerPage, PageError, RecordingStatus, pages_of
from tools.replay.recording.merge import Summary, merge
from tools.replay.traces.schema import TraceError

ALL_BROKERS = Entity(BROKERS, ENTITY_DEFAULT)
ID, ENABLE, SALT, TOPICS, MAX_BYTES = (
    "recorder.id",
    "recorder.enable",
    "recorder.client.salt",
    "recorder.topics",
    "recorder.max.bytes",
)
OBEYED_S = 15.0
"""Time limit for all brokers to start or stop. A change of a setting reaches them within a moment."""
LOOK_S = 0.1
CLOCKS_S = 0.01
"""A clock that is further off is worth a line."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A recording that was fetched. `missing`: a line for each broker whose rows are not in the trace."""

    summary: Summary
    statuses: Sequence[RecordingStatus]
    missing: Sequence[str]


class RecordedCluster:
    """`given`: addresses of brokers' pages, by id, for those that cannot be reached at their `metrics.listener`."""

    def __init__(self, cluster: ClusterView, admin: KafkaAdmin, given: Mapping[int, str]) -> None:
        """Raises AdminError."""
        self._cluster = cluster
        self._admin = admin
        self._pages = pages_of(cluster, admin, given)

    @property
    def brokers(self) -> list[int]:
        return [page.broker for page in self._pages]

    def recording(self) -> str:
        """The id of the recording that the settings name; "" if there is none."""
        return self._settings().get(ID, "")

    def start(self, max_bytes: int, topics: Sequence[str], *, hashes_clients: bool) -> str:
        """Returns the new recording's id when all live brokers record. Raises AdminError; nothing records then."""
        unknown = [topic for topic in topics if topic not in self._cluster.topics]
        if unknown:
            raise AdminError(f"topic {unknown[0]!r} does not exist; `ottla topic list` shows the topics")
        present = self.recording()
        if present:
            raise AdminError(f"recording {present} is there already; end it with `ottla replay record stop` first")
        for page in self._pages:
            page.status()
        recording = time.strftime("%Y%m%dT%H%M%S-") + secrets.token_hex(2)
        changes: dict[str, str | None] = {ID: recording, ENABLE: "true", MAX_BYTES: str(max_bytes)}
        if topics:
            changes[TOPICS] = ",".join(topics)
        if hashes_clients:
            changes[SALT] = secrets.token_hex(16)
        self._admin.alter_configs(ALL_BROKERS, changes)
        try:
            self._wait(self._pages, recording, "records", lambda status: status.is_recording)
        except BaseException:
            self._remove_settings()
            raise
        return recording

    def statuses(self) -> list[RecordingStatus | PageError]:
        """Of every live broker."""
        found: list[RecordingStatus | PageError] = []
        for page in self._pages:
            try:
                found.append(page.status())
            except PageError as problem:
                found.append(problem)
        return found

    def discard(self) -> str:
        """Ends the recording without a trace; the brokers remove their files. Returns its id. Raises AdminError."""
        recording = self._needed()
        self._remove_settings()
        return recording

    def stop(self, out: Path, *, allows_missing: bool, tell: Tell) -> Result:
        """Ends the recording and writes the trace. Then the brokers remove their files.

        Raises AdminError and TraceError. The brokers keep their files then, and `stop` can be repeated.
        """
        recording = self._needed()
        reachable, missing = self._reachable(recording)
        if missing and not allows_missing:
            raise AdminError(
                f"{'; '.join(missing)}. Nothing was changed: make it available, or leave its rows out with --allow-missing"
            )
        self._admin.alter_configs(ALL_BROKERS, {ENABLE: "false"})
        statuses = self._wait(
            reachable, recording, "stopped", lambda status: not status.is_recording and status.is_written
        )
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.recording-", dir=out.absolute().parent) as directory:
            files = self._fetch(statuses, Path(directory), tell)
            summary = merge(
                files,
                out,
                Path(directory),
                f"recorded by brokers {', '.join(str(status.broker) for status in statuses)}",
                self._cluster.partition_counts,
                tell,
            )
        self._remove_settings()
        return Result(summary, statuses, missing)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _needed(self) -> str:
        recording = self.recording()
        if not recording:
            raise AdminError("the brokers record nothing; `ottla replay record start` starts a recording")
        return recording

    def _settings(self) -> dict[str, str]:
        configs = self._admin.describe_configs([ALL_BROKERS])[ALL_BROKERS]
        return {key: found.value for key, found in configs.items() if found.value is not None}

    def _remove_settings(self) -> None:
        present = self._settings()
        changes = {key: None for key in (ID, ENABLE, SALT, TOPICS, MAX_BYTES) if key in present}
        if changes:
            self._admin.alter_configs(ALL_BROKERS, changes)

    def _reachable(self, recording: str) -> tuple[list[BrokerPage], list[str]]:
        """(pages of the brokers with files, a line for each broker without)"""
        reachable, missing = [], []
        for page in self._pages:
            try:
                status = page.status()
            except PageError as problem:
                missing.append(str(problem))
                continue
            if status.id == recording and status.files:
                reachable.append(page)
            else:
                reason = f": {status.problem}" if status.problem else ""
                missing.append(f"broker {page.broker} has no file of recording {recording}{reason}")
        down = sorted(self._cluster.assigned_brokers - set(self.brokers))
        missing += [f"broker {broker} is down" for broker in down]
        if not reachable:
            raise AdminError(f"{'; '.join(missing)}. Nothing was changed: no broker has a file")
        return reachable, missing

    def _wait(
        self, pages: Sequence[BrokerPage], recording: str, what: str, is_done: Callable[[RecordingStatus], bool]
    ) -> list[RecordingStatus]:
        ends_at = time.monotonic() + OBEYED_S
        statuses = []
        for page in pages:
            while True:
                status = page.status()
                if status.id == recording and status.problem and not status.files:
                    raise AdminError(f"broker {page.broker} cannot record: {status.problem}")
                if status.id == recording and is_done(status):
                    statuses.append(status)
                    break
                if time.monotonic() > ends_at:
                    raise AdminError(f"broker {page.broker} has not {what} after {OBEYED_S:g} s; see its server.log")
                time.sleep(LOOK_S)
        return statuses

    def _fetch(self, statuses: Sequence[RecordingStatus], directory: Path, tell: Tell) -> list[Path]:
        pages = {page.broker: page for page in self._pages}
        files = []
        for status in statuses:
            for name, size in status.files.items():
                tell(f"fetching {size / 1e6:,.1f} MB from broker {status.broker}")
                try:
                    files.append(pages[status.broker].download(name, directory))
                except PageError as problem:
                    raise AdminError(f"{problem}. The brokers keep their files: repeat the command") from None
                except OSError as problem:
                    raise TraceError(f"{directory}: {problem.strerror or problem}") from None
        return files
