"""Clients do not read their answers: the memory for these is bounded, and other clients are served (NET-2)."""

from __future__ import annotations

from broker.network.answer_writer import SLOW_SWEEPS, WRITE_BUFFER_HIGH
from broker.network.connection import LARGE_FRAME_S, LONG_FETCH, ClientConnection
from broker.network.connection_state import HELD_BYTES_MAX
from broker.network.request_channel import ANSWER_IN_A_QUEUE, LONG_QUEUE, Request
from broker.network.unsent_answers import ANSWER_MAX, ANSWER_MIN, UnsentAnswers
from tests.unit.broker.network.test_processor import LIMITS, Transport, World, frame, receive

MIB = 1024 * 1024


class StuckTransport(Transport):
    """A client that reads nothing: all stays here."""

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.unsent += sum(map(len, parts))


def connect_stuck(world: World) -> tuple[ClientConnection, StuckTransport]:
    connection, transport = ClientConnection(world.processor, "PLAINTEXT"), StuckTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def begins(request: Request) -> bool:
    """Whether this fetch may be answered now."""
    return request.connection.begin_fetch(request, needs_room=True)


class FetchWorld(World):
    """Each request is a fetch. It is answered at once with as many bytes as there is room for, at least one batch of MIB."""

    def __init__(self, max_unsent: int = -1) -> None:
        super().__init__()
        self.channel._handle = self.fetch
        self.channel.unsent.max_bytes = max_unsent
        self.sizes: list[int] = []

    def fetch(self, request: Request) -> None:
        connection = request.connection
        if not begins(request):
            return
        self.handled.append(request)
        size = max(connection.answer_room(), MIB)
        self.sizes.append(size)
        before = connection._transport.unsent
        request.respond([bytes(10), bytes(size)])
        if connection._transport.unsent > before:
            connection.pause_writing()  # type: ignore[attr-defined]


def test_pipelined_fetches_of_a_client_that_does_not_read_are_not_answered() -> None:
    """NET-2: 64 of them, with answers of 55 MB each, would fill the memory."""
    world = FetchWorld()
    connection, transport = connect_stuck(world)
    receive(connection, transport, b"".join(frame(n) for n in range(64)))
    world.turns.run()
    assert len(world.handled) == 1
    assert transport.unsent < ANSWER_MAX + 100
    assert not transport.is_reading
    transport.unsent = 0
    connection.resume_writing()
    world.turns.run()
    assert len(world.handled) == 2


def test_unread_small_answers_are_limited() -> None:
    world = World()
    connection, transport = connect_stuck(world)
    answered = 0

    def handle(request: Request) -> None:
        nonlocal answered
        answered += 1
        request.respond_small(bytes(100_000))
        connection.pause_writing()

    world.channel._handle = handle
    for begin in range(0, 90, 30):
        receive(connection, transport, b"".join(frame(n) for n in range(begin, begin + 30)))
        world.turns.run()
    assert transport.unsent <= WRITE_BUFFER_HIGH + 4 * 100_000
    assert answered < 20


def test_all_connections_share_a_budget_and_answers_shrink_before_it_is_used_up() -> None:
    world = FetchWorld(max_unsent=64 * MIB)
    stuck = [connect_stuck(world) for _ in range(200)]
    for connection, transport in stuck:
        receive(connection, transport, frame(1) + frame(2))
        world.turns.run()
    assert world.channel.unsent.total <= 2 * 64 * MIB + MIB + 100
    assert world.sizes[0] == ANSWER_MAX
    assert world.sizes == sorted(world.sizes, reverse=True)
    assert len(world.handled) < 200, "the others wait"
    for connection, _ in stuck[:20]:
        connection.connection_lost(None)
    world.turns.run()
    assert len(world.handled) == 200 or world.channel.unsent.is_exhausted
    for connection, _ in stuck[20:]:
        connection.connection_lost(None)
    world.turns.run()
    assert world.channel.unsent.total == 0


def test_a_client_that_reads_next_to_nothing_is_disconnected_above_the_limit() -> None:
    world = FetchWorld(max_unsent=16 * MIB)
    slow = [connect_stuck(world) for _ in range(30)]
    for connection, transport in slow:
        receive(connection, transport, frame(1))
        world.turns.run()
    assert world.channel.unsent.is_short
    quick, quick_transport = slow[0]
    for _ in range(SLOW_SWEEPS + 1):
        world.clock.now += 1
        quick_transport.unsent -= MIB // 2
        world.processor.sweep()
    assert [transport.is_closed for _, transport in slow] == [False] + [True] * 29
    assert quick.is_open


def test_a_client_that_reads_nothing_for_long_is_always_disconnected() -> None:
    world = FetchWorld()
    stuck, trickling = connect_stuck(world), connect_stuck(world)
    for connection, transport in (stuck, trickling):
        receive(connection, transport, frame(1))
    world.turns.run()
    for _ in range(int(LIMITS.answer_timeout_s) + 2):
        world.clock.now += 1
        trickling[1].unsent -= 1
        world.processor.sweep()
    assert stuck[1].is_closed
    assert not trickling[1].is_closed


def test_one_fetch_of_a_connection_at_a_time() -> None:
    """Fetches behind a parked one wait: otherwise all would be answered at once with it."""
    world = World()
    connection, transport = world.connect()
    world.channel._handle = lambda request: world.handled.append(request) if begins(request) else None
    receive(connection, transport, b"".join(frame(n) for n in range(5)))
    world.turns.run()
    assert world.ids() == [0]
    world.handled[0].respond_small(b"")
    world.turns.run()
    assert world.ids() == [0, 1]


def test_memory_reserved_for_the_answer_to_a_fetch_counts() -> None:
    world = World()
    connection, transport = world.connect()
    world.channel._handle = lambda request: world.handled.append(request) if begins(request) else None
    receive(connection, transport, frame(1))
    world.turns.run()
    connection.reserve(5000)
    assert world.channel.unsent.total == 5000
    connection.reserve(300)
    assert world.channel.unsent.total == 300
    world.handled[0].respond_small(b"")
    assert world.channel.unsent.total == 0


def test_answers_held_for_an_earlier_one_count_and_are_bounded() -> None:
    world = World()
    connection, transport = world.connect()

    def handle(request: Request) -> None:
        world.handled.append(request)
        if len(world.handled) > 1:
            request.respond_small(bytes(HELD_BYTES_MAX // 2 + 1))

    world.channel._handle = handle
    receive(connection, transport, b"".join(frame(n) for n in range(9)))
    world.turns.run()
    assert len(world.handled) == 3
    assert world.channel.unsent.total > HELD_BYTES_MAX
    connection.connection_lost(None)
    assert world.channel.unsent.total == 0


def test_a_large_frame_has_less_time_while_others_wait_for_room() -> None:
    world = World(max_large_bytes=300_000, limits=LIMITS._replace(frame_timeout_s=60, frame_bytes_max=100 * MIB))
    pairs = [world.connect() for _ in range(2)]
    for connection, transport in pairs:
        receive(connection, transport, frame(1, bytes(4 * MIB))[:150_000])
    producer, producers_transport = world.connect()
    data = frame(2, bytes(70_000))
    taken = receive(producer, producers_transport, data)
    assert taken == len(data), "a frame of a producer has room of its own"
    world.clock.now += LARGE_FRAME_S - 1
    world.processor.sweep()
    assert not any(transport.is_closed for _, transport in pairs)
    world.clock.now += 2
    world.processor.sweep()
    assert all(transport.is_closed for _, transport in pairs)
    assert producer.is_open


def test_a_producers_frame_that_waits_for_room_is_not_late() -> None:
    world = World(max_large_bytes=100_000, limits=LIMITS._replace(frame_timeout_s=60))
    pairs = [world.connect() for _ in range(3)]
    for connection, transport in pairs:
        receive(connection, transport, frame(1, bytes(400_000))[:120_000])
    assert [transport.is_reading for _, transport in pairs] == [True, False, False]
    world.clock.now += LARGE_FRAME_S + 1
    world.processor.sweep()
    assert [transport.is_closed for _, transport in pairs] == [True, False, False]


def test_the_room_for_an_answer() -> None:
    unsent = UnsentAnswers(64 * MIB)
    assert unsent.room() == ANSWER_MAX
    unsent.total = 63 * MIB
    assert unsent.room() == MIB // 8
    unsent.total = 64 * MIB
    assert (unsent.room(), unsent.is_short, unsent.is_exhausted) == (ANSWER_MIN, True, False)
    unsent.total = 128 * MIB
    assert (unsent.room(), unsent.is_exhausted) == (0, True)
    assert UnsentAnswers(-1).room() == ANSWER_MAX


def test_a_producer_does_not_wait_for_long_fetches_of_others() -> None:
    """Each fetch lists hundreds of partitions, so it waits in the heavy queue."""
    world = World()
    pairs = [world.connect() for _ in range(30)]
    producer, producers_transport = world.connect()

    def handle(request: Request) -> None:
        if request.connection is producer or begins(request):
            world.handled.append(request)
            request.respond_small(b"")

    world.channel._handle = handle
    for connection, transport in pairs:
        receive(connection, transport, frame(1, bytes(LONG_FETCH)) + frame(2, bytes(LONG_FETCH)))
    receive(producer, producers_transport, frame(3))
    world.turns.run()
    assert world.ids()[0] == 3
    by_connection = [[r.header.correlation_id for r in world.handled if r.connection is c] for c, _ in pairs]
    assert by_connection == [[1, 2]] * 30


def test_an_answer_is_smaller_while_others_wait() -> None:
    world = FetchWorld()
    for _ in range(30):
        connection, transport = connect_stuck(world)
        receive(connection, transport, frame(1))
    world.turns.run()
    assert world.sizes == [ANSWER_IN_A_QUEUE] * (30 - LONG_QUEUE) + [ANSWER_MAX] * LONG_QUEUE
