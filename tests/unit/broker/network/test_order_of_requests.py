"""Requests of a connection are *handled* in the order in which they came, and none is left behind (NET-1, NET-2).

Answers alone do not show it: they leave in order whatever was handled first. An idempotent producer whose batches change places is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from broker.network.connection import LONG_FETCH, ClientConnection
from broker.network.connection_state import Hold
from broker.network.frame_reader import SMALL_FRAME_MAX
from broker.network.request_channel import Request
from tests.unit.broker.network.test_processor import LIMITS, Transport, World, frame, receive

MIB = 1024 * 1024
CLIENTS = 3
FETCH, WRITE, LONG = 1, 2, 3
"""What a request is: one fetch of a connection is answered at a time; a write is answered at once; an API awaits something."""

Step = tuple[str, int, int]


class Client:
    """A connection, what its client has sent, and what of that was handled."""

    def __init__(self, world: Requests) -> None:
        self.world = world
        self.connection, self.transport = ClientConnection(world.processor, "PLAINTEXT"), SlowTransport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.sent = 0
        self.unread = b""
        self.handled: list[int] = []
        self.open: dict[int, Request] = {}

    def send(self, kind: int, size: int) -> None:
        self.unread += frame(self.sent, bytes([kind]) + bytes(size))
        self.sent += 1

    def deliver(self, most: int | None = None) -> None:
        """The broker receives what was sent, until it reads no more; at most `most` bytes."""
        self.unread = self.unread[receive(self.connection, self.transport, self.unread[:most], 100_000) :]


class SlowTransport(Transport):
    """Keeps what is written while its client does not read."""

    is_read = True

    def write(self, data: bytes) -> None:
        self.unsent += 0 if self.is_read else len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))


class Requests(World):
    """Requests that say themselves what they are."""

    def __init__(self, max_requests: int) -> None:
        super().__init__(
            max_requests=max_requests, max_large_bytes=300_000, limits=LIMITS._replace(frame_bytes_max=10 * MIB)
        )
        self.channel._handle = self.handle
        self.channel._monotonic = self.tick
        self.channel.unsent.max_bytes = 4 * MIB
        self.clients = [Client(self) for _ in range(CLIENTS)]
        self.by_connection = {client.connection: client for client in self.clients}
        self.ticks = 0.0

    def tick(self) -> float:
        """Each look at the time is 1 ms later, so that a turn of the loop has no time for all."""
        self.ticks += 0.001
        return self.ticks

    def handle(self, request: Request) -> None:
        connection = request.connection
        client = self.by_connection[connection]  # type: ignore[index]
        kind = request.frame[10]
        if kind == FETCH and not connection.begin_fetch(request, needs_room=True):
            return
        client.handled.append(request.header.correlation_id)
        if kind == WRITE:
            request.respond_small(b"")
            return
        client.open[request.header.correlation_id] = request
        if kind == LONG:
            connection.hold(Hold.ASYNC_API)

    def answer(self, client: Client, which: int, size: int) -> None:
        """Answers one of the requests that wait for it."""
        if not client.open:
            return
        request = client.open.pop(list(client.open)[which % len(client.open)])
        before = client.transport.unsent
        request.respond([bytes(size)])
        if request.frame[10] == LONG:
            client.connection.release(Hold.ASYNC_API)
        if client.transport.unsent > before:
            client.connection.pause_writing()

    def read(self, client: Client) -> None:
        """The client reads what was written to it."""
        client.transport.is_read = True
        if client.transport.unsent:
            client.transport.unsent = 0
            client.connection.resume_writing()

    def take(self, step: Step) -> None:
        what, who, size = step
        client = self.clients[who]
        if what in KINDS:
            client.send(KINDS[what], size % (SMALL_FRAME_MAX + 5_000))
        elif what == "deliver":
            client.deliver()
        elif what == "turn":
            self.turns.run_once()
        elif what == "answer":
            self.answer(client, size, size)
        elif what == "stop reading":
            client.transport.is_read = False
        elif what == "read":
            self.read(client)
        else:
            self.clock.now += 1
            self.processor.sweep()

    def finish(self) -> None:
        """Everybody reads, and everything is answered, until nothing changes any more."""
        before = None
        while before != (before := [(c.sent, len(c.handled), len(c.unread), len(c.open)) for c in self.clients]):
            for client in self.clients:
                self.read(client)
                client.deliver()
                self.answer(client, 0, 10)
            self.turns.run()


KINDS = {"fetch": FETCH, "write": WRITE, "long": LONG}
WHAT = [*KINDS, "fetch", "write", "deliver", "turn", "turn", "answer", "stop reading", "read", "sweep"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, CLIENTS - 1),
        st.sampled_from([0, 10, LONG_FETCH, 3_000, SMALL_FRAME_MAX, 300_000, 2 * MIB]),
    ),
    max_size=120,
)
A_SECOND_ONE_USES_UP_THE_SLICE: Sequence[Step] = (
    *[("fetch", 0, 0)] * 2,
    ("deliver", 0, 0),
    *[("turn", 0, 0)] * 3,
    *[("write", 1, 10)] * 9,
    ("deliver", 1, 0),
    *[("fetch", 0, 0)] * 2,
    ("deliver", 0, 0),
    ("answer", 0, 2 * MIB),
)
"""The first fetch has a large answer, so the second one waits. Others use up the time of the turn, and the third one stays queued."""


@given(STEPS, st.sampled_from([2, 8, 500]))
@example(list(A_SECOND_ONE_USES_UP_THE_SLICE), 500)
def test_requests_are_handled_in_the_order_in_which_they_came(steps: list[Step], max_requests: int) -> None:
    world = Requests(max_requests)
    for step in steps:
        world.take(step)
    world.finish()
    for client in world.clients:
        assert not client.transport.is_closed
        assert client.handled == list(range(client.sent)), "in order, and all of them"
        assert client.transport.is_reading
        assert client.connection.queue == type(client.connection.queue)()
    assert (world.channel.queued, world.channel.large.bytes, world.channel.unsent.total) == (0, 0, 0)


def test_what_a_client_sent_before_it_closed_the_connection_is_handled() -> None:
    """A producer with acks=0 sends and closes. What follows a request that ended the connection is not handled."""
    world = Requests(500)
    leaves, is_closed, _ = world.clients
    for client in (leaves, is_closed):
        for kind in (LONG, WRITE, WRITE):
            client.send(kind, 0)
        client.deliver()
    world.turns.run()
    assert (leaves.handled, is_closed.handled) == ([0], [0])
    leaves.connection.connection_lost(None)
    is_closed.connection.close("its first request is illegal")
    is_closed.connection.connection_lost(None)
    for client in (leaves, is_closed):
        client.connection.release(Hold.ASYNC_API)
    world.turns.run()
    assert (leaves.handled, is_closed.handled) == ([0, 1, 2], [0])
    assert world.channel.queued == 0


def test_a_large_fetch_that_went_back_releases_its_room_when_its_client_has_gone() -> None:
    """NET-2: it is handled once more, for nobody."""
    world = Requests(500)
    client, _, _ = world.clients
    client.send(FETCH, 0)
    client.send(FETCH, SMALL_FRAME_MAX)
    client.deliver()
    world.turns.run()
    assert (client.handled, world.channel.large.bytes > SMALL_FRAME_MAX) == ([0], True)
    client.connection.connection_lost(None)
    world.turns.run()
    assert (world.channel.queued, world.channel.large.bytes) == (0, 0)
