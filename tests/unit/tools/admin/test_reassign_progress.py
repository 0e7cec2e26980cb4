"""The arithmetic of bytes, percents and time left, by tables."""

from __future__ import annotations

import pytest

from protocol.types import Assignment, TopicPartition
from tools.admin.reassign_progress import Progress, ProgressTracker, duration_text, measure, size_text

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
MOVE = Assignment((3, 4, 1, 2), (3, 4), (2,))


@pytest.mark.parametrize(
    ("sizes", "leader", "moved", "total"),
    [
        ({(1, A0): 1000, (3, A0): 1000, (4, A0): 200}, 1, 1200, 2000),  # the module's worked example
        ({(1, A0): 1000}, 1, 0, 2000),  # nothing arrived
        ({(1, A0): 1000, (3, A0): 1500}, 1, 1000, 2000),  # more than the leader has: another retention
        ({(1, A0): 900, (2, A0): 1000, (3, A0): 100}, None, 100, 2000),  # no leader: the largest old replica
        ({(2, A0): 800, (4, A0): 100}, 1, 100, 1600),  # the leader does not answer
        ({(1, A0): 0}, 1, 0, 0),
        ({}, 1, 0, 0),
    ],
)
def test_measure(sizes: dict[tuple[int, TopicPartition], int], leader: int | None, moved: int, total: int) -> None:
    assert measure({A0: MOVE}, sizes, {A0: leader}) == {A0: Progress(moved, total)}


def test_only_new_replicas_count() -> None:
    removal = Assignment((1, 2), (), (2,))
    assert measure({A0: removal}, {(1, A0): 1000, (2, A0): 1000}, {A0: 1}) == {A0: Progress(0, 0)}


@pytest.mark.parametrize(
    ("progress", "percent", "text"),
    [
        (Progress(1200, 2000), 60.0, "60%, 1.2 KiB of 2.0 KiB"),
        (Progress(0, 0), 100.0, "no bytes to move"),
        (Progress(0, 10), 0.0, "0%, 0 B of 10 B"),
    ],
)
def test_progress(progress: Progress, percent: float, text: str) -> None:
    assert progress.percent == percent
    assert str(progress) == text
    assert progress.bytes_left == progress.bytes_total - progress.bytes_moved


def test_tracker_rate_and_time_left() -> None:
    tracker = ProgressTracker([A0, A1])
    first = tracker.update(0.0, {A0: Progress(0, 1000), A1: Progress(0, 1000)})
    assert (first.rate, first.eta_s, first.partitions_done) == (None, None, 0)
    second = tracker.update(2.0, {A0: Progress(400, 1000), A1: Progress(0, 1000)})
    assert (second.rate, second.eta_s) == (200.0, 8.0)
    assert str(second) == "0 of 2 partitions, 20%, 400 B of 2.0 KiB, 200 B/s, about 8 s left"
    third = tracker.update(4.0, {A1: Progress(0, 1000)})  # the first is done: all its bytes are there
    assert (third.partitions_done, third.bytes) == (1, Progress(1000, 2000))
    last = tracker.update(6.0, {})
    assert (last.partitions_done, last.bytes, last.eta_s, last.percent) == (2, Progress(2000, 2000), None, 100.0)


def test_the_rate_covers_only_the_last_seconds() -> None:
    tracker = ProgressTracker([A0])
    for second in range(100):
        overall = tracker.update(float(second), {A0: Progress(min(second * 10, 500), 1000)})
    assert overall.rate == 0.0
    assert overall.eta_s is None


def test_without_bytes_the_partitions_are_counted() -> None:
    tracker = ProgressTracker([A0, A1])
    assert tracker.update(0.0, {A0: Progress(0, 0), A1: Progress(0, 0)}).percent == 0.0
    assert tracker.update(1.0, {A1: Progress(0, 0)}).percent == 50.0


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**20, "5.0 MiB"), (2**60, "1024.0 PiB")]
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_duration_text(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
