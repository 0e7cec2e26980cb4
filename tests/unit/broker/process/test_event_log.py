"""The event log: whole lines, rotation, and a disk that fails for a while."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from broker.process.event_log import EventLog, LimitedEvents
from broker.process.rotated_file import RotatedFile, Rotation
from tests.support.fake_time import FakeTime
from tools.cluster.log_parts import LogReader, events_of, parts_of

SMALL = Rotation(300, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def kinds(path: Path) -> list[str]:
    return [row["kind"] for row in events_of(path)]


def test_a_full_file_is_rotated_and_few_old_files_are_kept(path: Path) -> None:
    events = EventLog(path, FakeTime(), SMALL)
    for number in range(100):
        events.write("filler", number=number)
    assert [part.name for part in parts_of(path)] == ["events.jsonl.2", "events.jsonl.1", "events.jsonl"]
    assert all(part.stat().st_size <= SMALL.bytes_max for part in parts_of(path))
    numbers = [row["number"] for row in events_of(path)]
    assert numbers == list(range(numbers[0], 100))


def test_a_reader_continues_across_a_rotation(path: Path) -> None:
    events = EventLog(path, FakeTime(), Rotation(300, 9))
    reader, seen = LogReader(path), []
    for number in range(60):
        events.write("filler", number=number)
        if number % 7 == 0:
            seen += [json.loads(line)["number"] for line in reader.new_lines()]
    seen += [json.loads(line)["number"] for line in reader.new_lines()]
    assert seen == list(range(60))
    late = LogReader(path)
    late.skip()
    events.write("last")
    assert len(list(late.new_lines())) == 1


def test_a_write_error_is_reported_once_and_writing_continues_when_the_disk_works_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, whole = FakeTime(), os.write
    events = EventLog(path, time)
    events.write("before")

    def full(fd: int, data: bytes) -> int:
        if data[:1] != b"#" and is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(fd, data)

    is_full = True
    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            events.write("dropped")
        time.now += 2
        events.write("dropped")
        is_full = False
        time.now += 2
        events.write("after")
    assert kinds(path) == ["before", "events_dropped", "after"]
    assert [row["count"] for row in events_of(path) if row["kind"] == "events_dropped"] == [101]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_dropped_events_are_counted_once_and_lines_stay_whole_on_a_disk_with_little_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write takes ten bytes at most, and `room` bytes fit in all."""
    time, whole, room = FakeTime(), os.write, 40

    def some(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = whole(fd, data[: min(10, room)])
        room -= written
        return written

    monkeypatch.setattr(os, "write", some)
    events = EventLog(path, time)
    for more in (0, 0, 100, 1000):  # the third has room for the line about the first two, and not for its own
        room += more
        events.write("event", text="x" * 50)
        time.now += 2
    whole_lines = [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert [(row["kind"], row.get("count")) for row in whole_lines] == [
        ("events_dropped", 2),
        ("events_dropped", 1),
        ("event", None),
    ]


def test_the_next_line_does_not_continue_a_torn_line(path: Path) -> None:
    path.write_bytes(b'{"kind":"torn')
    EventLog(path, FakeTime()).write("whole")
    assert kinds(path) == ["whole"]
    assert len(list(LogReader(path).new_lines())) == 2


def test_a_planted_link_is_not_followed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = path.with_name("target")
    target.write_text("mine")
    path.symlink_to(target)
    EventLog(path, FakeTime()).write("x")
    assert target.read_text() == "mine"
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), {(1, 2): 3}, "a\nb\x1b\u2028", "\udc80", Path("x")])
def test_each_line_is_json_in_ascii(path: Path, value: object) -> None:
    EventLog(path, FakeTime()).write("odd", value=value)
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["kind"] == "odd"
    assert line.decode("ascii").isprintable()


def test_other_users_cannot_read_the_file(path: Path) -> None:
    RotatedFile(path, SMALL).append(b"x\n")
    assert path.stat().st_mode & 0o007 == 0


def test_events_that_clients_cause_are_limited_and_counted(path: Path) -> None:
    time = FakeTime()
    limited = LimitedEvents(EventLog(path, time), time.monotonic, per_second=3)
    for second in range(3):
        for number in range(5 if second else 2):
            limited.write("joined", number=number)
        time.now += 1
    limited.write("joined", number=9)
    rows = [(row["kind"], row.get("number", row.get("count"))) for row in events_of(path)]
    second = [("joined", 0), ("joined", 1), ("joined", 2)]
    assert rows == [*second[:2], *second, ("events_left_out", 2), *second, ("events_left_out", 2), ("joined", 9)]
