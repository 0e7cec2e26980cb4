"""A fetch of one partition that can be answered at once gets the answer that the general way gives."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from protocol.kafka import single_fetch
from protocol.kafka.fetch_codec import READ_COMMITTED
from protocol.types import TopicPartition
from tests.support.one_leader import LEADER, TOPIC, Broker, fetch_frame
from tests.support.replica_cluster import Cluster


@pytest.mark.parametrize(
    ("version", "isolation_level", "unreplicated"), [(12, 0, 0), (16, READ_COMMITTED, 0), (16, 0, 160)]
)
async def test_both_ways_give_the_same_answer(
    tmp_path: Path, version: int, isolation_level: int, unreplicated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, within a batch, near the end of what may be read, there and behind it (parked), and outside of the log."""
    cluster = Cluster(tmp_path)
    await cluster.start(LEADER)
    cluster.tp = TopicPartition(TOPIC, 0)
    cluster.lead(LEADER, 0, (LEADER,))
    broker = Broker(cluster)
    broker.fill()
    partition = broker.manager.partitions.find(cluster.tp)
    partition.high_watermark -= unreplicated
    end = partition.high_watermark
    offsets = (0, 5, 1000, end - 3, end - 1, end, end + 1, -1)
    frames = [fetch_frame(version, offset, isolation_level) for offset in offsets]

    def answers() -> list[bytes]:
        found = []
        for frame in frames:
            broker.socket.last = []
            broker.send(frame)
            broker.time.advance(0.6)  # the fetch at the end is parked
            broker.look()
            found.append(b"".join(broker.socket.last))
        return found

    at_once = itertools.count()
    original = broker.manager.fetches.answer_at_once

    def counted(*args: object) -> object:
        answer = original(*args)  # type: ignore[arg-type]
        if answer is not None:
            next(at_once)
        return answer

    monkeypatch.setattr(broker.manager.fetches, "answer_at_once", counted)
    quick = answers()
    monkeypatch.setattr(single_fetch, "find", lambda *_: None)
    assert answers() == quick
    assert all(quick)
    assert next(at_once) == 5, "the reads below the end were answered at once"
    cluster.close()
