"""Samples of high watermarks for the event log: when, and how many (RUN-3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replication import high_watermark_samples
from broker.replication.high_watermark_samples import HighWatermarkSamples
from broker.replication.partition import Role
from protocol.types import TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.memory_cluster import Events


@dataclass
class Replica:
    """As much of a partition as is looked at."""

    tp: TopicPartition
    role: Role = Role.LEADER
    leader_epoch: int = 1
    high_watermark: int = 0
    log: Any = field(default_factory=lambda: SimpleNamespace(log_end_offset=0))

    def move(self, high_watermark: int, end: int) -> None:
        self.high_watermark, self.log.log_end_offset = high_watermark, end


def world(
    count: int = 1, pauses: list[None] | None = None
) -> tuple[list[Replica], HighWatermarkSamples, Events, FakeTime]:
    replicas = [Replica(TopicPartition("t", number)) for number in range(count)]
    events, time = Events(), FakeTime()
    counted = [] if pauses is None else pauses

    async def pause() -> None:
        counted.append(None)

    samples = HighWatermarkSamples(replicas, events, time.monotonic, pause)  # type: ignore[arg-type]
    return replicas, samples, events, time


def offsets(events: Events) -> list[list[int]]:
    return [row[1:] for fields in events.of("high_watermarks") for row in fields["partitions"]]


async def test_the_first_move_in_a_leader_epoch_is_written_at_once_and_then_one_in_a_second() -> None:
    (replica,), samples, events, time = world()
    moves = [(0, 0), (0, 1), (1, 1), (2, 2), (3, 3)]
    for high_watermark, end in moves:
        replica.move(high_watermark, end)
        await samples.sample()
        time.now += 0.1
    assert offsets(events) == [[1, 0, 0], [1, 0, 1], [1, 1, 1]], "the last two are within a second of the first move"
    time.now += 1
    await samples.sample()
    assert offsets(events)[3:] == [[1, 3, 3]]
    replica.leader_epoch = 2
    await samples.sample()
    assert offsets(events)[4:] == [[2, 3, 3]], "a new leader epoch is written at once"


async def test_nothing_is_written_of_what_rests_or_is_not_led() -> None:
    replicas, samples, events, time = world(2)
    replicas[1].role = Role.FOLLOWER
    for _ in range(3):
        await samples.sample()
        time.now += 10
    assert offsets(events) == [[1, 0, 0]]
    replicas[0].log = None
    await samples.sample()
    assert len(events.rows) == 1


async def test_of_many_partitions_the_first_are_named_and_the_others_counted() -> None:
    pauses: list[None] = []
    replicas, samples, events, _ = world(6000, pauses)
    await samples.sample()
    (fields,) = events.of("high_watermarks")
    assert len(fields["partitions"]) == high_watermark_samples.ROWS_IN_AN_EVENT
    assert fields["more"] == 6000 - high_watermark_samples.ROWS_IN_AN_EVENT
    assert len(pauses) == 6000 // high_watermark_samples.LOOKS_IN_A_SLICE, "NET-4"
    replicas[0].move(5, 5)
    await samples.sample()
    assert offsets(events)[-1] == [1, 5, 5]


@pytest.mark.parametrize(("ago", "pause"), [(0, 0.1), (1.9, 0.1), (2, 1), (29, 1), (30, 10), (1e6, 10)])
def test_it_looks_often_after_something_happened(ago: float, pause: float) -> None:
    _, samples, _, time = world()
    samples.something_happened()
    time.now += ago
    assert samples.pause_s() == pause
