"""`ottla bench`: the cluster of the controller's bench, brokers that only acknowledge, and the longest turn of the scale bench."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.rpc import framing
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, PartitionState
from protocol.zk.znodes import PartitionStateZNode
from tools.bench.controller import cluster_znodes
from tools.bench.controller.acknowledging_brokers import AcknowledgingBrokers
from tools.bench.controller.cluster_znodes import ClusterShape
from tools.bench.scale.scale_bench import LoopTurns


def test_the_shape_of_a_cluster() -> None:
    topics = ClusterShape(250, 3, 4).topics()
    assert [len(replicas) for replicas in topics.values()] == [100, 100, 50]
    assert topics["bench-00001"][3] == (1, 2, 3)
    everything = [ids for replicas in topics.values() for ids in replicas.values()]
    assert all(len(set(ids)) == 3 for ids in everything)
    leaders = [sum(ids[0] == broker for ids in everything) for broker in (1, 2, 3, 4)]
    assert max(leaders) - min(leaders) <= len(topics)


def test_each_run_writes_the_same_states_and_partitions_have_different_ones() -> None:
    replicas = ClusterShape(100, 3, 3).topics()["bench-00000"]
    states = list(cluster_znodes._states("bench-00000", replicas))
    assert states == list(cluster_znodes._states("bench-00000", replicas))
    decoded = [PartitionStateZNode.decode(data, 0) for _, data in states]
    assert [state.leader for state in decoded] == [ids[0] for ids in replicas.values()]
    assert len({state.leader_epoch for state in decoded}) > 90


@pytest.mark.parametrize(
    ("buckets_ms", "logged_ms", "longest"),
    [
        ({1: 20.0, 2: 30.0}, {}, (30.0, "")),
        ({1: 250.0, 2: 50.0}, {1: [130.0, 60.0]}, (130.0, "broker 1: call")),
        ({1: 100.0, 2: 250.0}, {1: [60.0], 2: [130.0]}, (130.0, "broker 2: call")),
    ],
)
def test_a_logged_turn_is_more_exact_than_its_bucket(
    monkeypatch: pytest.MonkeyPatch,
    buckets_ms: dict[int, float],
    logged_ms: dict[int, list[float]],
    longest: tuple[float, str],
) -> None:
    cluster: Any = SimpleNamespace(broker_ids=(1, 2))
    monkeypatch.setattr(LoopTurns, "_bucket_ms", lambda _, broker: buckets_ms[broker])
    monkeypatch.setattr(LoopTurns, "_held", lambda _, broker: ((ms, "call") for ms in logged_ms.get(broker, ())))
    assert LoopTurns(cluster).look() == longest


class Registry:
    """The ZooKeeper operations that the brokers of the bench use."""

    def __init__(self) -> None:
        self.created: list[tuple[str, bytes]] = []

    async def create(self, path: str, data: bytes, **_: Any) -> None:
        self.created.append((path, data))


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_requests_are_acknowledged_in_whatever_pieces_they_arrive(piece: int) -> None:
    row = PartitionState("t", 0, 1, 2, 3, (2,), 4, (2, 1))
    frames = [framing.request_frame(number, LeaderAndIsrRequest(1, 2, 3, (row,) * number, {})) for number in (1, 50, 0)]

    async def run() -> None:
        brokers = AcknowledgingBrokers(Registry())  # type: ignore[arg-type]
        await brokers.register(1)
        port = brokers._servers[1].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = b"".join(frames)
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
            await writer.drain()
        answers = []
        for _ in frames:
            length = int.from_bytes(await reader.readexactly(4), "big")
            answers.append(framing.parse_response(await reader.readexactly(length)))
        assert answers == [(1, ControlResponse()), (50, ControlResponse()), (0, ControlResponse())]
        assert (brokers.requests, brokers.received_bytes) == (3, len(data))
        writer.close()
        brokers.close()

    asyncio.run(run())
