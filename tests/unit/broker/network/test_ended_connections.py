"""A connection that is to end, so that its client connects again: what is here is answered, and nothing more is read."""

from __future__ import annotations

from broker.network.connection import LAST_ANSWERS_S, ClientConnection
from broker.network.connection_state import ConnectionState
from tests.unit.broker.network.test_processor import Transport, World, frame, receive

REASON = "because"


def asked(world: World, count: int) -> tuple[ClientConnection, Transport]:
    """A connection to end, with requests that are not answered yet."""
    connection, transport = world.connect()
    receive(connection, transport, b"".join(map(frame, range(count))))
    world.turns.run()
    connection.end_when_answered(REASON)
    return connection, transport


async def test_one_whose_client_waits_for_nothing_ends_at_once() -> None:
    connection, transport = asked(World(), 0)
    assert (connection.state, transport.is_closed) == (ConnectionState.CLOSING, True)


async def test_all_that_is_here_is_answered_and_nothing_more_is_read() -> None:
    world = World()
    connection, transport = asked(world, 3)
    assert receive(connection, transport, frame(3)) == 0
    for request in reversed(world.handled):
        assert not transport.is_closed
        request.respond_small(b"answer %d" % request.header.correlation_id)
        world.turns.run()
    assert transport.is_closed
    assert [transport.written.find(b"answer %d" % number) >= 0 for number in range(3)] == [True] * 3


async def test_requests_that_wait_to_be_handled_are_handled() -> None:
    world = World()
    connection, transport = world.connect()
    receive(connection, transport, frame(0) + frame(1))
    connection.end_when_answered(REASON)
    world.turns.run()
    assert world.ids() == [0, 1]
    for request in world.handled:
        request.respond_nothing()
    assert transport.is_closed


async def test_a_muted_one_is_not_waited_for() -> None:
    world = World()
    connection, transport = world.connect()
    receive(connection, transport, frame(0))
    world.turns.run()
    connection.mute(1000)
    receive(connection, transport, frame(1))
    world.handled[0].respond_small(b"answer")
    connection.end_when_answered(REASON)
    assert transport.is_closed, "what its client has sent since was not read"


async def test_what_the_client_has_not_read_is_waited_for() -> None:
    world = World()
    connection, transport = asked(world, 1)
    transport.unsent = 1000
    connection.pause_writing()
    world.handled[0].respond_small(b"answer")
    world.turns.run()
    world.processor.sweep()
    assert not transport.is_closed
    transport.unsent = 0
    connection.resume_writing()
    world.processor.sweep()
    assert transport.is_closed


async def test_a_request_that_is_never_answered_is_not_waited_for() -> None:
    world = World()
    _, transport = asked(world, 1)
    world.clock.now += LAST_ANSWERS_S
    world.processor.sweep()
    assert not transport.is_closed
    world.clock.now += 0.1
    world.processor.sweep()
    assert transport.is_closed


async def test_the_time_for_the_last_answers_does_not_begin_again() -> None:
    world = World()
    connection, transport = asked(world, 1)
    world.clock.now += LAST_ANSWERS_S
    connection.end_when_answered(REASON)
    world.clock.now += 0.1
    world.processor.sweep()
    assert transport.is_closed
