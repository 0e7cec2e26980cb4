"""Recordings that settings switch on and off: their files in the log directory, their limits, and the page that serves them (RPL-5)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.process.clock import SystemClock
from broker.process.loop_watchdog import TurnTimes
from broker.process.metrics import MetricsServer
from broker.recording.recorder import Recorder
from broker.recording.recording_file import FREE_MIN, RecordingFile
from broker.recording.recording_page import PATH, RecordingPage
from broker.settings.config import BrokerConfig, ConfigError, parse_value
from broker.storage.disk.filesystem import FileSystem
from protocol.recording import Counts, Header, RecordingReader, entries_frame

ON = {"recorder_id": "r", "recorder_enable": True}
OFF = {"recorder_id": "r"}
MEGABYTE = 1024 * 1024


class FullDisk(FileSystem):
    def space(self, path: str) -> tuple[int, int]:
        return FREE_MIN * 10, FREE_MIN - 1


class BrokenDisk(FileSystem):
    def write(self, fd: int, parts: Any, position: int) -> None:
        if position:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write(fd, parts, position)


class Life:
    """A broker's recorder from its start to its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorder = Recorder(1, FileSystem(), SystemClock(), asyncio.get_running_loop(), lambda: str(directory))

    def apply(self, **settings: Any) -> None:
        self.recorder.apply(BrokerConfig(broker_id=1, **settings))

    def member(self, group: str) -> None:
        assert self.recorder.recording is not None
        connection = SimpleNamespace(remote_address="10.0.0.1")
        request: Any = SimpleNamespace(received_at=1.0, header=SimpleNamespace(client_id="c"), connection=connection)
        self.recorder.recording.member(request, group)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    def groups(self, name: str) -> list[str]:
        with open(self.directory / name, "rb") as file:
            return [entry[4] for block in RecordingReader(file).blocks() for entry in block]


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Life]:
    """Starts the broker."""
    return lambda: Life(tmp_path)


async def test_settings_start_stop_and_remove_a_recording(start: Callable[[], Life]) -> None:
    life = start()
    life.apply()
    assert life.recorder.recording is None
    life.apply(**ON)
    life.member("a")
    life.apply(**ON)  # another setting changed
    life.member("b")
    life.apply(**OFF)
    assert life.recorder.recording is None
    await life.recorder.close()
    assert life.files == ["recording-r-1.rows"]
    assert life.groups("recording-r-1.rows") == ["a", "b"]
    assert stat.S_IMODE((life.directory / "recording-r-1.rows").stat().st_mode) & 0o022 == 0

    life = start()
    life.apply()  # the id was removed while the broker was away
    await life.recorder.close()
    assert life.files == []


async def test_a_broker_that_restarts_continues_in_a_further_file(start: Callable[[], Life]) -> None:
    for group in ("a", "b"):
        life = start()
        life.apply(**ON)
        life.member(group)
        await life.recorder.close()
    names = ["recording-r-1.rows", "recording-r-2.rows"]
    assert life.files == names
    assert [life.groups(name) for name in names] == [["a"], ["b"]]


async def test_a_new_recording_removes_the_old_one_and_nothing_else(start: Callable[[], Life]) -> None:
    life = start()
    others = ["meta.properties", "recording-r-1.rows.bak", "recording-r.rows"]
    for name in others:
        (life.directory / name).write_text("")
    (life.directory / "recording-old-7.rows").write_text("")
    life.apply(**ON)
    await life.recorder.close()
    assert life.files == sorted([*others, "recording-r-1.rows"])


@pytest.mark.parametrize(
    ("filesystem", "max_bytes", "why"),
    [
        (FileSystem(), 2000, "recorder.max.bytes is reached"),
        (FullDisk(), MEGABYTE, "the disk has less than 256 MiB free"),
        (BrokenDisk(), MEGABYTE, "the file cannot be written: Input/output error"),
    ],
)
def test_what_does_not_fit_into_the_file_is_counted_in_it(
    tmp_path: Path, filesystem: FileSystem, max_bytes: int, why: str
) -> None:
    file = RecordingFile(filesystem, str(tmp_path), Header("r", 1, 0, 0.0), max_bytes)
    fitted = 0
    while file.append(entries_frame(Counts(3, 2, 1), ["entry"] * 10), 10):
        fitted += 10
    assert not file.append(entries_frame(Counts(3, 2, 1), ["entry"] * 5), 5)
    assert file.why_full == why
    if isinstance(filesystem, BrokenDisk):
        return
    file.close(Counts(3, 2, 1))
    path = tmp_path / file.name
    assert path.stat().st_size <= max_bytes
    with open(path, "rb") as opened:
        reader = RecordingReader(opened)
        assert sum(map(len, reader.blocks())) == fitted
    assert (reader.counts, reader.is_cut) == (Counts(3 + 15, 2, 1), False)


async def test_the_page_shows_the_status_and_sends_the_files_and_nothing_else(start: Callable[[], Life]) -> None:
    life = start()
    (life.directory / "meta.properties").write_text("secret")
    (life.directory / "recording-other-1.rows").symlink_to("meta.properties")
    server = MetricsServer("127.0.0.1", 0, TurnTimes(), {PATH: RecordingPage(life.recorder)})

    def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        asked = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method)
        try:
            with urllib.request.urlopen(asked) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, b""

    try:
        life.apply(**ON)
        life.member("a")
        await life.recorder.close()
        name = "recording-r-1.rows"
        found = json.loads((await asyncio.to_thread(get, "/recording"))[1])
        assert (found["id"], found["recording"], found["written"], found["requests"]) == ("r", False, True, 1)
        content = (life.directory / name).read_bytes()
        assert found["files"] == [{"name": name, "bytes": len(content)}]
        assert await asyncio.to_thread(get, f"/recording/{name}") == (200, content)
        for path in ("meta.properties", "../meta.properties", "recording-other-1.rows", "recording-r-2.rows"):
            assert (await asyncio.to_thread(get, f"/recording/{path}"))[0] == 404
        assert (await asyncio.to_thread(get, f"/recording/{name}", "DELETE"))[0] == 405
        assert b"ottla_loop_turn_seconds" in (await asyncio.to_thread(get, "/metrics"))[1]
    finally:
        server.close()


@pytest.mark.parametrize("text", ["../x", "a/b", "a b", "é", "x" * 65, "."])
def test_an_id_that_could_be_a_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"recorder\.id"):
        parse_value(BrokerConfig, "recorder.id", text)
