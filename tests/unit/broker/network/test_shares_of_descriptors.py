"""The shares of descriptors on the listeners: clients are refused, brokers replace who is silent, the controller comes through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.control import listener as control
from broker.control.listener import ControlListener
from broker.descriptors import shares_of
from broker.network.acceptor import ConnectionCounts
from protocol.errors import ErrorCode
from protocol.rpc import framing
from protocol.rpc.messages import ControlledShutdownRequest, ControlResponse
from tests.support.replica_cluster import Cluster


class Connection:
    """A broker's, as the counts see it."""

    def __init__(self, counts: ConnectionCounts, last_heard: float) -> None:
        self.last_heard = last_heard
        self.is_open = True
        self._counts = counts
        counts.take_broker(self)  # type: ignore[arg-type]

    def abort(self) -> None:
        self.is_open = False
        self._counts.give_back_broker(self)  # type: ignore[arg-type]


def test_clients_have_no_more_than_their_share() -> None:
    shares = shares_of(256)
    counts = ConnectionCounts(2**31 - 1, 2**31 - 1, shares)
    assert [counts.take(f"{number}") for number in range(shares.clients)] == [""] * shares.clients
    assert "limit of open files" in counts.take("late")
    counts.share(shares_of(1024))
    assert counts.take("late") == ""
    assert counts.clients_max == shares_of(1024).clients
    counts.limit(7, 7)
    assert counts.clients_max == 7
    assert "max.connections=7" in counts.take("later")


def test_a_broker_too_many_takes_the_place_of_the_most_silent() -> None:
    counts = ConnectionCounts(1, 1, shares_of(256))
    share = shares_of(256).brokers
    silent = Connection(counts, last_heard=1.0)
    others = [Connection(counts, last_heard=10.0 + number) for number in range(share - 1)]
    late = Connection(counts, last_heard=100.0)
    assert not silent.is_open
    assert late.is_open
    assert all(other.is_open for other in others)
    late.abort()
    another = Connection(counts, last_heard=101.0)
    assert another.is_open
    assert all(other.is_open for other in others)


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
def test_a_flood_on_the_control_listener_leaves_the_controllers_connection(tmp_path: Path) -> None:
    async def not_controller(request: ControlledShutdownRequest) -> ControlResponse:
        return ControlResponse(ErrorCode.NOT_CONTROLLER)

    async def no_overrides(topics: Any) -> dict[str, dict[str, str]]:
        return {}

    async def run() -> None:
        node = (await Cluster(tmp_path).start(1)).nodes[1]
        listener = ControlListener(node.manager, lambda: node.epoch, no_overrides, not_controller)
        listener.connections_max = 4
        port = await listener.start("127.0.0.1", 0)
        question = framing.request_frame(7, ControlledShutdownRequest(1, node.epoch))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(question)
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
                ended = [await one.read() for one, _ in flood[:-3]]
                assert ended == [b""] * 17, "the oldest that said nothing"
                for _, silent in flood:
                    silent.close()
            writer.close()
        finally:
            await listener.close()

    asyncio.run(run())
    assert shares_of(2**20).control <= control.CONNECTIONS_MAX
