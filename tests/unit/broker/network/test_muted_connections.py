"""A connection whose client is over a quota is muted: nothing is read or handled, answers are sent, nothing is lost (KIP-219)."""

from __future__ import annotations

import asyncio

import pytest

from broker.network.connection import ClientConnection
from tests.unit.broker.network.test_processor import Transport, World, frame, receive


class Muted:
    """A connection that was muted for a second after its first request; two more have arrived before, and others come."""

    def __init__(self) -> None:
        self.world = World()
        self.connection, self.transport = self.world.connect()
        receive(self.connection, self.transport, frame(1))
        self.world.turns.run()
        receive(self.connection, self.transport, frame(2) + frame(3))
        self.connection.mute(1000)
        self.world.turns.run()

    def pass_time(self, seconds: float) -> None:
        """What the timer does after so long."""
        self.world.clock.now += seconds
        if self.connection._unmuting is not None:
            self.connection._unmute()
        self.world.turns.run()


async def test_requests_wait_and_are_handled_in_order_afterwards() -> None:
    muted = Muted()
    assert muted.world.ids() == [1]
    assert not muted.transport.is_reading
    muted.world.handled[0].respond_small(b"answer")
    muted.world.turns.run()
    assert muted.transport.written.endswith(b"answer")
    muted.pass_time(0.5)
    assert muted.world.ids() == [1]
    muted.pass_time(0.5)
    assert (muted.world.ids(), muted.transport.is_reading) == ([1, 2, 3], True)
    receive(muted.connection, muted.transport, frame(4))
    muted.world.turns.run()
    assert muted.world.ids() == [1, 2, 3, 4]


async def test_a_longer_time_counts_and_a_shorter_one_does_not() -> None:
    muted = Muted()
    muted.connection.mute(3000)
    muted.connection.mute(10)
    muted.pass_time(2.9)
    assert muted.world.ids() == [1]
    muted.pass_time(0.1)
    assert muted.world.ids() == [1, 2, 3]


async def test_nothing_else_lets_it_read() -> None:
    muted = Muted()
    muted.connection.read_again()
    muted.world.channel.when_there_is_room(muted.connection)
    muted.world.turns.run()
    assert not muted.transport.is_reading
    muted.pass_time(1.0)
    assert muted.connection.overdue(muted.world.clock.now + 59) == ""


async def test_who_is_muted_for_too_long_is_closed() -> None:
    """The client may be gone, and connections would pile up."""
    muted = Muted()
    muted.connection.mute(1_000_000_000)
    muted.world.clock.now += 60
    muted.world.processor.sweep()
    assert not muted.transport.is_closed
    muted.world.clock.now += 1
    muted.world.processor.sweep()
    assert muted.transport.is_closed


async def test_the_time_to_be_idle_begins_with_the_answer() -> None:
    """As with Kafka's Selector, which counts from the last byte that was read or written."""
    muted = Muted()
    muted.world.clock.now += 50
    muted.connection.mute(1_000_000_000)
    assert muted.connection.overdue(muted.world.clock.now + 60) == ""
    assert "over a quota" in muted.connection.overdue(muted.world.clock.now + 61)
    muted.transport.unsent = 1000
    muted.connection.pause_writing()
    assert muted.connection.overdue(muted.world.clock.now + 61) == "", "a client that reads its answer is not idle"


@pytest.mark.parametrize("is_lost", [True, False])
async def test_its_end_ends_the_wait(is_lost: bool) -> None:
    """A client that is gone had sent its requests before: they are handled. Those of a connection that the broker closes are not."""
    muted = Muted()
    if not is_lost:
        muted.connection.abort()
    muted.connection.connection_lost(None)
    muted.world.turns.run()
    assert muted.connection._unmuting is None
    assert muted.world.ids() == ([1, 2, 3] if is_lost else [1])
    muted.connection.mute(1000)
    assert muted.connection._unmuting is None


async def test_the_timer_lets_it_go_on() -> None:
    world = World()
    clock = asyncio.get_running_loop().time
    world.clock.monotonic = clock  # type: ignore[method-assign]
    connection, transport = ClientConnection(world.processor, "PLAINTEXT"), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.mute(20)
    connection.mute(30)
    released = asyncio.Event()
    release = connection.release
    connection.release = lambda reason: (release(reason), released.set())[0]  # type: ignore[method-assign]
    began = clock()
    await released.wait()
    assert clock() - began >= 0.03
    assert transport.is_reading
