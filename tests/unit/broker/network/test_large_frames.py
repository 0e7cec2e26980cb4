"""The room for large frames while the connections of some of them are held (NET-2): their requests wait, perhaps for minutes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.network.connection import LARGE_FRAME_S
from broker.network.connection_state import Hold
from broker.network.frame_reader import SMALL_FRAME_MAX
from tests.unit.broker.network.test_order_of_requests import FETCH, MIB, WRITE, Client, Requests

MOST = 300_000
"""The limit of all large frames in these tests."""
TURNS = 60

Sent = list[tuple[int, int]]
BEHIND_A_FETCH: Sent = [(FETCH, 0), (FETCH, 0), (WRITE, MIB)]
"""The second fetch waits until the first one is answered, and the write behind it."""
A_FETCH_ITSELF: Sent = [(FETCH, 0), (FETCH, MIB)]


def send_all(world: Requests, clients: list[Client], sent: Sent) -> None:
    for client in clients:
        world.by_connection[client.connection] = client
        for kind, size in sent:
            client.send(kind, size)


def run(world: Requests, clients: list[Client]) -> None:
    """Turns of the loop; in each, the sockets of these clients are read once."""
    for _ in range(TURNS):
        for client in clients:
            client.deliver(SMALL_FRAME_MAX)
        world.turns.run_once()


@pytest.mark.parametrize("sent", [BEHIND_A_FETCH, A_FETCH_ITSELF])
def test_what_held_connections_make_the_broker_keep_is_bounded(sent: Sent) -> None:
    world = Requests(500)
    clients = [Client(world) for _ in range(40)]
    send_all(world, clients, sent)
    for client in clients:
        run(world, [client])
    assert {len(client.handled) for client in clients} == {1}
    first_reads = len(clients) * SMALL_FRAME_MAX
    assert world.channel.large.bytes < 2 * MOST + MIB + first_reads
    read_no_further = [client for client in clients if client.unread or client.transport.is_closed]
    assert len(read_no_further) > len(clients) // 2


def test_the_next_frame_is_read_when_the_oldest_one_is_whole_or_held() -> None:
    """The oldest frame keeps its room while its request waits."""
    world = Requests(500)
    whole, held, late = clients = [Client(world) for _ in range(3)]
    send_all(world, [whole], [(WRITE, 400_000)])
    whole.deliver(310_000)
    send_all(world, [held], [(FETCH, 0), (FETCH, 0), (WRITE, 3 * MIB)])
    send_all(world, [late], [(WRITE, 3 * MIB)])
    for client in (held, late):
        client.deliver(2 * SMALL_FRAME_MAX)
    assert [client.transport.is_reading for client in clients] == [True, False, False]
    whole.deliver()
    whole.connection.hold(Hold.ASYNC_API)
    assert [client.transport.is_reading for client in clients[1:]] == [True, False]
    run(world, [held, late])
    assert (whole.handled, held.handled, late.handled) == ([], [0], [0])
    assert (whole.unread == b"", held.unread == b"") == (True, False)


def test_held_connections_are_closed_when_others_need_the_room_of_their_requests() -> None:
    world = Requests(500)
    held = [Client(world) for _ in range(10)]
    send_all(world, held, [(WRITE, 100_000)])
    for client in held:
        client.deliver(150_000)
        client.connection.hold(Hold.ASYNC_API)
    producer = Client(world)
    send_all(world, [producer], [(WRITE, MIB)])
    run(world, [producer])
    world.clock.now += LARGE_FRAME_S - 1
    world.processor.sweep()
    assert not any(client.transport.is_closed for client in held)
    world.clock.now += 2
    world.processor.sweep()
    assert any(client.transport.is_closed for client in held)
    assert not producer.transport.is_closed
    for client in held:
        client.connection.connection_lost(None)
    run(world, [producer])
    assert producer.handled == [0]
    world.turns.run()
    assert (world.channel.queued, world.channel.large.bytes) == (0, 0)


def test_a_large_fetch_that_must_wait_is_refused_when_others_need_its_room() -> None:
    """Otherwise clients with one parked fetch and a large one keep the room one after the other."""
    world = Requests(500)
    waits, is_refused, producer = clients = [Client(world) for _ in range(3)]
    send_all(world, clients[:2], [(FETCH, 0), (FETCH, 200_000)])
    for client in clients[:2]:
        run(world, [client])
    assert (waits.transport.is_closed, is_refused.transport.is_closed) == (False, True)
    send_all(world, [producer], [(WRITE, MIB)])
    run(world, [producer])
    assert producer.handled == [0]
    for client in clients:
        client.connection.connection_lost(None)
    world.turns.run()
    assert (world.channel.queued, world.channel.large.bytes) == (0, 0)


def half(client: Client) -> None:
    send_all(client.world, [client], [(WRITE, 10), (WRITE, 400_000)])
    client.deliver(310_000)


def whole(client: Client) -> None:
    send_all(client.world, [client], [(WRITE, 90_000)])
    client.deliver()


def read_ahead(client: Client) -> None:
    send_all(client.world, [client], [(WRITE, 30_000)])
    client.deliver()
    client.connection.hold(Hold.ASYNC_API)
    send_all(client.world, [client], [(WRITE, 10), (WRITE, 400_000)])
    client.deliver()
    assert client.unread


@pytest.mark.parametrize("arrive", [half, whole, read_ahead])
@pytest.mark.parametrize(("muted_s", "is_closed"), [(LARGE_FRAME_S + 2, True), (LARGE_FRAME_S, False)])
async def test_who_is_muted_for_long_does_not_keep_the_room_of_others(
    arrive: Callable[[Client], None], muted_s: float, is_closed: bool
) -> None:
    """It would be closed anyway, before it is read again. Whoever is muted for less may go on."""
    world = Requests(500)
    muted = [Client(world) for _ in range(30)]
    for client in muted:
        arrive(client)
        client.connection.mute(int(muted_s * 1000))
    producer = Client(world)
    send_all(world, [producer], [(WRITE, MIB)])
    run(world, [producer])
    assert bool(producer.handled) == (arrive is not whole), (
        "above the limit, one is read at a time; at twice the limit, none"
    )
    world.clock.now += 1
    world.processor.sweep()
    assert {client.transport.is_closed for client in muted} == {is_closed}
    for client in muted:
        client.connection.release(Hold.ASYNC_API)
        client.connection.connection_lost(None)
    run(world, [producer])
    assert producer.handled == [0]
    world.turns.run()
    assert (world.channel.queued, world.channel.large.bytes) == (0, 0)
