"""Requests go out one at a time and in order, are retried until answered, and end with the broker's life (CTL-15, BUG-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from controller import broker_channels
from controller.broker_channels import BrokerChannels
from protocol.network_client import Disconnected, RequestTimedOut
from protocol.rpc.messages import ControlRequest, ControlResponse, StopReplicaRequest
from protocol.types import BrokerInfo, Endpoint


def request(controller_id: int, number: int = 0) -> StopReplicaRequest:
    return StopReplicaRequest(controller_id, 1, 1, (), number=number)


def broker(broker_id: int, listener: str = "CONTROLLER") -> BrokerInfo:
    return BrokerInfo(broker_id, 5, (Endpoint(listener, "host", broker_id),))


class Client:
    """A ControlClient whose answers the test gives."""

    def __init__(self) -> None:
        self.sent: list[tuple[tuple[str, int], ControlRequest]] = []
        self.under_way: list[asyncio.Future[ControlResponse]] = []
        self.disconnected: list[tuple[str, int]] = []

    async def send(self, address: tuple[str, int], sent: ControlRequest) -> ControlResponse:
        self.sent.append((address, sent))
        self.under_way.append(asyncio.get_running_loop().create_future())
        return await self.under_way[-1]

    def disconnect(self, address: tuple[str, int]) -> None:
        self.disconnected.append(address)


class World:
    def __init__(self) -> None:
        self.client = Client()
        self.answered: list[tuple[int, int]] = []
        self.channels = BrokerChannels(
            self.client,  # type: ignore[arg-type]
            "CONTROLLER",
            lambda broker_id, sent, response: self.answered.append((broker_id, sent.controller_id)),
        )


@pytest.fixture
def world(runner: asyncio.Runner) -> Iterator[World]:
    async def close() -> None:
        world.channels.close()

    world = World()
    yield world
    runner.run(close())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_at_a_time_and_in_order(world: World) -> None:
    world.channels.add(broker(1))
    answers = [world.channels.send(1, request(n)) for n in range(3)]
    for n in range(3):
        await turns()
        assert [sent for _, sent in world.client.sent] == [request(i, i + 1) for i in range(n + 1)]
        world.client.under_way[n].set_result(ControlResponse())
    await turns()
    assert all(answer is not None and answer.result() == ControlResponse() for answer in answers)
    assert world.answered == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    "failure", [Disconnected("x"), RequestTimedOut("x"), ValueError("x"), TypeError("x"), RuntimeError("unexpected")]
)
async def test_a_failed_request_is_sent_again_unchanged(
    world: World, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_channels, "RETRY_S", 0)
    world.channels.add(broker(1))
    world.channels.send(1, request(0))
    world.channels.send(1, request(1))
    for n in range(3):
        await turns()
        world.client.under_way[n].set_exception(failure)
    await turns()
    assert [sent for _, sent in world.client.sent] == [request(0, 1)] * 4
    world.client.under_way[3].set_result(ControlResponse())
    await turns()
    assert world.client.sent[-1] == (("host", 1), request(1, 2))


async def test_answering_returns_the_brokers_that_answer_in_time(world: World) -> None:
    """Broker 1 answers all, 2 nothing, 3 the first of two requests, 4 is removed, 5 has no channel, 6 got no request."""
    for broker_id in (1, 2, 3, 4, 6):
        world.channels.add(broker(broker_id))
    for broker_id in (1, 2, 3, 3, 4):
        world.channels.send(broker_id, request(broker_id))
    asked = asyncio.ensure_future(world.channels.answering({1, 2, 3, 4, 5, 6}, 0.05))
    await turns()
    for (_, sent), answer in zip(tuple(world.client.sent), tuple(world.client.under_way), strict=True):
        if sent.controller_id in (1, 3):
            answer.set_result(ControlResponse())
    world.channels.remove(4)
    assert await asked == {1, 6}
    assert await world.channels.answering({1, 6}, 0) == {1, 6}, "without waiting"


async def test_waiting_requests_are_dropped_with_the_broker(world: World) -> None:
    world.channels.add(broker(1))
    world.channels.add(broker(2))
    answers = [world.channels.send(1, request(n)) for n in range(2)]
    await turns()
    world.channels.remove(1)
    await turns()
    assert all(answer is not None and answer.cancelled() for answer in answers)
    assert world.client.disconnected == [("host", 1)]
    assert world.channels.send(1, request(2)) is None
    world.channels.add(broker(1))
    world.channels.send(1, request(3))
    await turns()
    assert [sent for _, sent in world.client.sent] == [request(0, 1), request(3, 3)]


async def test_a_broker_without_a_control_listener_gets_no_channel(world: World) -> None:
    world.channels.add(broker(1, "PLAINTEXT"))
    assert world.channels.send(1, request(0)) is None


async def test_nothing_is_sent_after_the_term(world: World) -> None:
    world.channels.add(broker(1))
    world.channels.close()
    world.channels.add(broker(2))
    assert world.channels.send(1, request(0)) is None
    assert world.channels.send(2, request(0)) is None
