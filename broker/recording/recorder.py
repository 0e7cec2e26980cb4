"""Switches recordings on and off, as the settings say (RPL-5).

The settings are dynamic: `recorder.id` names a recording, whose files exist as long as it is set; `recorder.enable` lets it grow. An
admin sets them for all brokers at once, and ZooKeeper brings them to brokers that start later. Recording is not part of Kafka's
protocol, and so has no request of its own: settings are changed, described and secured like all others.

The order is start (id, enable), stop (not enable), fetch the files (`recording_page.py`), remove (no id). A broker removes files of
any other id, also at its start: it may have been away when the id was removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from broker.process.clock import Clock
from broker.recording.recording import Recording
from broker.recording.recording_file import RecordingFile, files_in, remove_others
from broker.settings.config import BrokerConfig
from broker.storage.disk.filesystem import FileSystem
from protocol.recording import Header

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""How often the rest in memory is written. A crash loses at most this time."""


class _Wanted(NamedTuple):
    """What the settings ask for."""

    id: str
    is_on: bool
    max_bytes: int
    topics: tuple[str, ...]
    salt: str


NOTHING_WANTED = _Wanted("", False, 0, (), "")


class Recorder:
    """`recording` is what the APIs report to; None while nothing is recorded. `directory` names a log directory that is online.

    `wall_ns`: nanoseconds since 1970. The order of a batch and the end of its transaction, at two brokers, needs more than milliseconds.
    """

    def __init__(
        self,
        broker_id: int,
        filesystem: FileSystem,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        directory: Callable[[], str | None],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.recording: Recording | None = None
        self._broker_id = broker_id
        self._filesystem = filesystem
        self._clock = clock
        self._loop = loop
        self._directory_now = directory
        self._wall_ns = wall_ns
        self._directory: str | None = None
        self._wanted = NOTHING_WANTED
        self._is_fresh = True
        self._latest: Recording | None = None
        self._since_ns = 0
        self._file: RecordingFile | None = None
        self._problem = ""
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, "recording")

    def apply(self, config: BrokerConfig) -> None:
        """Starts, stops or removes a recording if the settings changed. To be called once at the start, whatever they are."""
        topics = tuple(sorted(filter(None, map(str.strip, config.recorder_topics.split(",")))))
        wanted = _Wanted(
            config.recorder_id,
            config.recorder_enable and bool(config.recorder_id),
            config.recorder_max_bytes,
            topics,
            config.recorder_client_salt,
        )
        if wanted == self._wanted and not self._is_fresh:
            return
        self._is_fresh = False
        before, self._wanted = self._wanted, wanted
        self._stop()
        if self._directory is None:
            self._directory = self._directory_now()
        if wanted.id != before.id:
            self._latest, self._problem, self._since_ns = None, "", 0
        self._in_thread(self._remove_others, wanted.id)
        if wanted.is_on:
            self._start(wanted)

    async def close(self) -> None:
        """Writes what is in memory, and closes the file."""
        self._stop()
        await self._loop.run_in_executor(None, self._thread.shutdown)

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _start(self, wanted: _Wanted) -> None:
        self._since_ns = self._wall_ns()
        header = Header(wanted.id, self._broker_id, self._since_ns, self._clock.monotonic())
        self._in_thread(self._open, header, wanted.max_bytes)
        self.recording = self._latest = Recording(self._write, wanted.topics, wanted.salt)
        self._timer = self._loop.call_later(FLUSH_S, self._flush)
        log.info("recording %s has started", wanted.id)

    def _stop(self) -> None:
        if self.recording is None:
            return
        recording, self.recording = self.recording, None
        if self._timer is not None:
            self._timer.cancel()
        recording.stop()
        self._in_thread(self._close, recording)
        log.info("a recording has stopped: %d requests, %d dropped", recording.requests, recording.dropped)

    def _flush(self) -> None:
        if self.recording is not None:
            self.recording.flush()
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def _write(self, frames: bytes, requests: int, written: Callable[[bool], None]) -> None:
        def done(future: asyncio.Future[bool]) -> None:
            written(future.result())

        self._loop.run_in_executor(self._thread, self._append, frames, requests).add_done_callback(done)

    def _in_thread(self, work: Callable[..., None], *args: Any) -> None:
        self._loop.run_in_executor(self._thread, self._guarded, work, *args)

    # -- in the recording's thread ------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except OSError as error:
            self._problem = f"{error.filename or 'the file'}: {error.strerror or error}"
            log.warning("the recording failed: %s", self._problem)

    def _open(self, header: Header, max_bytes: int) -> None:
        if self._directory is None:
            self._problem = "no log directory is online"
            return
        self._file = RecordingFile(self._filesystem, self._directory, header, max_bytes)

    def _append(self, frames: bytes, requests: int) -> bool:
        file = self._file
        if file is None:
            return False
        fits = file.append(frames, requests)
        if not fits and not self._problem:
            self._problem = file.why_full
            log.warning("the recording has no more room: %s", file.why_full)
        return fits

    def _close(self, recording: Recording) -> None:
        file = self._file
        try:
            if file is not None:
                file.close(recording.counts)
        finally:
            self._file = None

    def _remove_others(self, recording: str) -> None:
        if self._directory is not None:
            remove_others(self._filesystem, self._directory, recording)

    # -- for the page, in any thread ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """For people and for `ottla replay record`. May block for the disk; raises OSError."""
        latest, wanted, directory = self._latest, self._wanted, self._directory
        files = files_in(self._filesystem, directory, wanted.id) if directory is not None and wanted.id else []
        return {
            "broker": self._broker_id,
            "id": wanted.id,
            "recording": self.recording is not None,
            "written": self._file is None,
            "since_ns": self._since_ns,
            "now_ns": self._wall_ns(),
            "requests": latest.requests if latest is not None else 0,
            "rows": latest.rows if latest is not None else 0,
            "dropped": latest.dropped if latest is not None else 0,
            "refused": latest.refused if latest is not None else 0,
            "estimated": latest.estimated if latest is not None else 0,
            "problem": self._problem,
            "files": [{"name": view.name, "bytes": view.size} for view in files],
        }

    def path_of(self, name: str) -> str | None:
        """The path of one of the files that `status` lists. None if there is no such file."""
        directory = self._directory
        if directory is None or all(view["name"] != name for view in self.status()["files"]):
            return None
        return f"{directory}/{name}"
