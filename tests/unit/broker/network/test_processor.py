"""Bytes in, requests out, answers back: cutting frames, limits, order, pausing. Without sockets."""

from __future__ import annotations

import gc
import struct
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.network.connection import AHEAD_MAX, ClientConnection, Limits
from broker.network.connection_state import ConnectionState, Hold
from broker.network.frame_reader import RECEIVE_BUFFER_SIZE, SMALL_FRAME_MAX
from broker.network.kept_buffers import KEPT_BYTES_MAX
from broker.network.large_frames import LARGE_STEP_MAX, LARGE_TURN_MAX
from broker.network.processor import Processor
from broker.network.request_channel import Request, RequestChannel
from tests.support.fake_time import FakeTime as Clock
from tests.support.turns import Turns

LIMITS = Limits(frame_bytes_max=1_000_000, in_flight_max=10, frame_timeout_s=5.0, idle_timeout_s=60.0)


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.is_reading = True
        self.is_closed = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 4711)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.writes += 1
        self.written += b"".join(parts)

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    abort = close


class World:
    """One channel, one processor, connections as needed. `handled` has the requests in order; the test answers them."""

    def __init__(self, *, max_requests: int = 500, max_large_bytes: int = -1, limits: Limits = LIMITS) -> None:
        self.turns = Turns()
        self.clock = Clock()
        self.handled: list[Request] = []
        self.channel = RequestChannel(
            self.turns,
            self.handled.append,
            max_requests=max_requests,
            max_large_bytes=max_large_bytes,
            monotonic=lambda: 0.0,  # a busy machine ends no slice
        )
        self.processor = Processor(self.channel, limits, self.clock, lambda connection: True, lambda connection: None)

    def connect(self) -> tuple[ClientConnection, Transport]:
        connection, transport = ClientConnection(self.processor, "PLAINTEXT"), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def ids(self) -> list[int]:
        """The correlation ids of the handled requests, in their order."""
        return [request.header.correlation_id for request in self.handled]


@pytest.fixture
def world() -> World:
    return World()


def receive(connection: ClientConnection, transport: Transport, data: bytes, piece: int = 1 << 30) -> int:
    """Delivers bytes as the loop does, until reading is paused. Returns how many bytes were received."""
    taken = 0
    while taken < len(data) and transport.is_reading and not transport.is_closed:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data) - taken, piece)
        assert size > 0
        buffer[:size] = data[taken : taken + size]
        del buffer
        connection.buffer_updated(size)
        taken += size
    return taken


def frame(number: int, body: bytes = b"") -> bytes:
    """A request (header v1 without a client id) whose correlation id is `number`."""
    payload = struct.pack(">hhih", 3, 1, number, -1) + body
    return struct.pack(">i", len(payload)) + payload


@given(
    st.lists(st.integers(0, 3 * RECEIVE_BUFFER_SIZE), min_size=1, max_size=8),
    st.sampled_from([7, 1000, 65_536, 1 << 20]),
)
def test_frames_are_complete_however_their_bytes_arrive(sizes: list[int], piece: int) -> None:
    world = World()
    connection, transport = world.connect()
    bodies = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    data = b"".join(frame(n, body) for n, body in enumerate(bodies))
    if piece == 7:
        data = data[:5000]
    taken = receive(connection, transport, data, piece)
    while taken < len(data):  # it has sent too far ahead: what has arrived is handled first
        world.turns.run()
        more = receive(connection, transport, data[taken:], piece)
        assert more > 0
        taken += more
    world.turns.run()
    assert [bytes(r.frame[10:]) for r in world.handled] == bodies[: len(world.handled)]
    if piece != 7:
        assert (len(world.handled), world.channel.large.bytes) == (len(bodies), 0)


@pytest.mark.parametrize("size", [-1, 0, -(2**31), LIMITS.frame_bytes_max + 1, 2**31 - 1])
def test_an_illegal_frame_size_closes_the_connection(world: World, size: int) -> None:
    """BAD-1, 2, 3"""
    connection, transport = world.connect()
    receive(connection, transport, struct.pack(">i", size) + b"abc")
    world.turns.run()
    assert transport.is_closed
    assert world.handled == []
    assert connection.state is ConnectionState.CLOSING


def test_after_a_broken_header_earlier_requests_are_not_answered(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, transport, frame(1) + struct.pack(">i", 3) + b"abc" + frame(2))
    world.turns.run()
    assert transport.is_closed
    assert world.ids() == [1]
    world.handled[0].respond([b"late"])
    world.turns.run()
    assert transport.written == b""


def test_a_large_frame_arrives_in_the_buffer_of_one_that_was_dropped(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, transport, frame(1, b"a" * 900_000) + frame(2, b"b" * 900_000))
    world.turns.run()
    first, second = world.handled
    assert first.frame.obj is not second.frame.obj
    assert bytes(first.frame[10:]) == b"a" * 900_000, "the second frame leaves the first one alone"
    buffer = first.frame.obj
    world.handled.clear()
    del first
    receive(connection, transport, frame(3, b"c" * 800_000))
    world.turns.run()
    assert world.handled[0].frame.obj is buffer
    assert bytes(world.handled[0].frame[10:]) == b"c" * 800_000
    assert bytes(second.frame[10:]) == b"b" * 900_000


def test_clients_that_only_announce_large_frames_get_at_most_the_kept_buffers() -> None:
    """BAD-4: what such clients make the broker hold beyond the bytes that arrived has one limit for all of them."""
    world = World()
    announced = struct.pack(">i", 900_000) + bytes(SMALL_FRAME_MAX - 4)
    waiting = []
    for number in range(40):
        sender, sender_transport = world.connect()
        receive(sender, sender_transport, frame(number, bytes(900_000)))
        world.turns.run()
        world.handled.clear()
        sender.connection_lost(None)
        connection, transport = world.connect()
        receive(connection, transport, announced)
        waiting.append(connection)
    rooms = [len(connection.get_buffer(-1)) for connection in waiting]
    assert sum(room for room in rooms if room > 2 * SMALL_FRAME_MAX) <= KEPT_BYTES_MAX
    assert world.channel.large.kept.bytes <= KEPT_BYTES_MAX


def test_what_is_read_ahead_of_a_paused_connection_counts_as_large() -> None:
    """NET-2: beyond the size of a small frame. While there is no room, a read has at most that size."""
    world = World(max_large_bytes=200_000)
    connection, transport = world.connect()
    data = b"".join(frame(n, bytes(5_000)) for n in range(100))
    taken = receive(connection, transport, data[: 4 * len(frame(0, bytes(5_000)))])  # the next read may be long
    taken += receive(connection, transport, data[taken:])
    assert not transport.is_reading
    ahead = world.channel.large.bytes
    assert SMALL_FRAME_MAX < ahead <= RECEIVE_BUFFER_SIZE
    other, other_transport = world.connect()
    receive(other, other_transport, frame(0, bytes(20_000)))
    assert len(other.get_buffer(-1)) > SMALL_FRAME_MAX
    third, third_transport = world.connect()
    receive(third, third_transport, frame(0, bytes(400_000))[:200_000])
    assert len(other.get_buffer(-1)) == SMALL_FRAME_MAX
    third.connection_lost(None)
    while taken < len(data):
        world.turns.run()
        for request in world.handled:
            request.respond_nothing()
        world.handled.clear()
        world.turns.run()
        taken += receive(connection, transport, data[taken:])
    connection.connection_lost(None)
    assert world.channel.large.bytes == 0


def test_what_a_connection_sends_ahead_in_one_turn_is_limited() -> None:
    """NET-2: the loop reads a busy socket many times in a turn; then the connection may be held for long, with all of it."""
    world = World(limits=LIMITS._replace(in_flight_max=1000))
    connection, transport = world.connect()
    data = b"".join(frame(n, bytes(20_000)) for n in range(200))
    taken = receive(connection, transport, data)
    assert AHEAD_MAX < taken <= AHEAD_MAX + RECEIVE_BUFFER_SIZE
    world.turns.run()
    waiting = len(world.handled)
    while taken < len(data):
        before = taken
        taken += receive(connection, transport, data[taken:])
        assert taken > before, "the requests were handled, unanswered ones do not keep others from being read"
        world.turns.run()
    assert 0 < waiting < len(world.handled)
    assert world.ids() == list(range(200))
    assert (world.channel.large.bytes, world.channel.queued, transport.is_reading) == (0, 0, True)


def test_small_requests_that_were_read_too_far_ahead_do_not_take_a_turn_each() -> None:
    world = World(limits=LIMITS._replace(in_flight_max=10_000))
    connection, transport = world.connect()
    long = b"".join(frame(n, bytes(20_000)) for n in range(26))
    small = b"".join(frame(n) for n in range(26, 3_026))
    taken = receive(connection, transport, long + small)
    assert taken > AHEAD_MAX
    assert not transport.is_reading, "the small requests wait"
    turns = 0
    while len(world.handled) < 26 + 1_000 and turns < 100:
        world.turns.run_once()
        turns += 1
    assert turns < 100
    assert world.ids() == list(range(len(world.handled)))


@pytest.mark.parametrize("is_held", [False, True])
def test_whole_large_frames_of_one_read_count_until_they_are_handled(world: World, is_held: bool) -> None:
    connection, transport = world.connect()
    receive(connection, transport, frame(0, bytes(20_000)))
    world.turns.run()
    body = bytes(SMALL_FRAME_MAX)
    if is_held:
        connection.hold(Hold.ASYNC_API)
    receive(connection, transport, frame(1, body) + frame(2, body))
    assert world.channel.large.bytes > SMALL_FRAME_MAX
    assert transport.is_reading is not is_held
    world.turns.run()
    if is_held:
        assert world.ids() == [0]
        connection.release(Hold.ASYNC_API)
        world.turns.run()
    assert world.ids() == [0, 1, 2]
    assert (world.channel.large.bytes, transport.is_reading) == (0, True)


def test_answers_of_one_turn_leave_in_one_write_and_in_order(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, transport, frame(1) + frame(2) + frame(3))
    world.turns.run()
    first, second, third = world.handled
    third.respond_small(b"three")
    second.respond_nothing()
    world.turns.run()
    assert transport.written == b""
    first.respond([b"one"])
    world.turns.run()
    assert transport.written == struct.pack(">ii", 7, 1) + b"one" + struct.pack(">ii", 9, 3) + b"three"
    assert transport.writes == 1


def test_the_end_of_a_turn_comes_after_its_requests_and_before_their_answers_are_written() -> None:
    world = World()
    connections = [world.connect() for _ in range(2)]
    channel = world.channel
    seen: list[tuple[list[int], int]] = []

    def end() -> None:
        seen.append((world.ids(), sum(transport.writes for _, transport in connections)))
        if len(seen) == 1:
            for request in world.handled:
                request.respond_small(b"")
            channel.at_end_of_turn(end)

    def handle(request: Request) -> None:
        world.handled.append(request)
        if len(world.handled) == 1:
            channel.at_end_of_turn(lambda: 1 // 0)
            channel.at_end_of_turn(end)

    channel._handle = handle
    channel._monotonic = lambda: 0.0  # both requests are handled in one slice
    for number, (connection, transport) in enumerate(connections):
        receive(connection, transport, frame(number))
    world.turns.run()
    assert seen == [([0, 1], 0), ([0, 1], 2)], "at the end of the turn, and then in the next one"
    receive(*connections[0], frame(2))
    world.turns.run()
    assert world.ids() == [0, 1, 2], "an error of a callback ends nothing else"


def test_between_two_turns_the_end_is_that_of_the_next_one(world: World) -> None:
    ends: list[int] = []
    world.channel.at_end_of_turn(lambda: ends.append(1))
    assert ends == []
    world.turns.run()
    assert ends == [1]


def test_pipelined_requests_are_bounded_and_none_is_lost(world: World) -> None:
    """BAD-5"""
    connection, transport = world.connect()
    data = b"".join(frame(n) for n in range(35))
    taken = receive(connection, transport, data)
    world.turns.run()
    assert len(world.handled) == LIMITS.in_flight_max
    assert not transport.is_reading
    for answered in range(35):
        world.handled[answered].respond_small(b"")
        world.turns.run()
        taken += receive(connection, transport, data[taken:])
        world.turns.run()
        assert len(world.handled) <= answered + 1 + LIMITS.in_flight_max
    assert world.ids() == list(range(35))


@pytest.mark.parametrize(("room", "are_reading"), [(8, [True, False, False]), (3, [False, False, False])])
def test_in_a_crowded_queue_each_connection_has_one_request(room: int, are_reading: list[bool]) -> None:
    """NET-2, BAD-5: a client that pipelines does not get ahead of others."""
    world = World(max_requests=room)
    pairs = [world.connect() for _ in range(3)]
    for number, (connection, transport) in enumerate(pairs):
        receive(connection, transport, frame(10 * number) + frame(10 * number + 1))
    assert [transport.is_reading for _, transport in pairs] == are_reading
    world.turns.run()
    for request in list(world.handled):
        request.respond_nothing()
    world.turns.run()
    assert all(transport.is_reading for _, transport in pairs)
    order = world.ids()
    assert sorted(order) == [0, 1, 10, 11, 20, 21]
    assert order.index(20) < order.index(11)


def test_connections_that_are_released_together_keep_nobody_waiting() -> None:
    """Each of them has a full pipeline, so that thousands of requests are queued at once. A newcomer waits for one round."""
    world = World(max_requests=20)
    pairs = [world.connect() for _ in range(50)]
    for connection, transport in pairs:
        receive(connection, transport, frame(0))
        world.turns.run()
        world.handled.pop().respond_nothing()
        receive(connection, transport, b"".join(frame(1 + n) for n in range(LIMITS.in_flight_max)))
        connection.hold(Hold.ASYNC_API)
    world.turns.run()
    assert world.handled == []
    for connection, _ in pairs:
        connection.release(Hold.ASYNC_API)
    newcomer, newcomers_transport = world.connect()
    receive(newcomer, newcomers_transport, frame(99))
    world.turns.run()
    assert world.ids().index(99) <= len(pairs)


def test_the_connection_that_waits_longest_for_room_is_read_first() -> None:
    """Ten connections that pipeline must not fill a queue of four again and again before the eleventh is read."""
    world = World(max_requests=4)
    pairs = [world.connect() for _ in range(11)]
    for number, (connection, transport) in enumerate(pairs):
        receive(connection, transport, b"".join(frame(100 * number + at) for at in range(5)))

    def handle(request: Request) -> None:
        world.handled.append(request)
        request.respond_nothing()

    world.channel._handle = handle
    world.turns.run()
    order = world.ids()
    assert len(order) == 55
    assert order.index(1000) < 15


def test_large_frames_share_a_limit_and_the_oldest_is_always_read() -> None:
    """NET-2: small requests are handled meanwhile."""
    world = World(max_large_bytes=300_000)
    first, first_transport = world.connect()
    second, second_transport = world.connect()
    third, third_transport = world.connect()
    large = frame(1, bytes(400_000))
    receive(first, first_transport, large[:200_000])
    taken = receive(second, second_transport, large)
    assert not second_transport.is_reading
    assert taken < 300_000
    receive(third, third_transport, frame(5))
    world.turns.run()
    assert world.ids() == [5]
    receive(first, first_transport, large[200_000:])
    world.turns.run()
    assert len(world.handled) == 2
    assert second_transport.is_reading
    receive(second, second_transport, large[taken:])
    world.turns.run()
    assert len(world.handled) == 3
    assert world.channel.large.bytes == 0


def test_large_frames_have_a_share_of_each_turn() -> None:
    """A hundred frames that wait in the kernel's buffers are not read in one turn of the loop: that held it for 0.17 s."""
    world = World()
    opened = [world.connect() for _ in range(30)]
    large = frame(1, bytes(900_000))
    taken = [0] * len(opened)
    of_turns = []
    while sum(taken) < len(opened) * len(large):
        before = sum(taken)
        for n, (connection, transport) in enumerate(opened):
            taken[n] += receive(connection, transport, large[taken[n] :])
        of_turns.append(sum(taken) - before)
        world.turns.run()
    assert len(world.handled) == len(opened)
    assert max(of_turns) < LARGE_TURN_MAX + len(opened) * LARGE_STEP_MAX // 2
    assert len(of_turns) >= 3


def test_frames_and_connections_that_take_too_long_are_closed(world: World) -> None:
    """BAD-4"""
    slow, slow_transport = world.connect()
    _, idle_transport = world.connect()
    waiting, waiting_transport = world.connect()
    receive(waiting, waiting_transport, frame(1))
    receive(slow, slow_transport, frame(2)[:6])
    world.turns.run()
    for _ in range(2):
        world.clock.now += 3
        receive(slow, slow_transport, b"\x00")  # trickling does not help
        world.processor.sweep()
    assert slow_transport.is_closed
    assert not idle_transport.is_closed
    world.clock.now += 60
    world.processor.sweep()
    assert idle_transport.is_closed
    assert not waiting_transport.is_closed  # it waits for us


def test_a_waiting_request_is_notified_once_when_its_connection_ends(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, transport, frame(1) + frame(2))
    world.turns.run()
    ended: list[int] = []
    connection.at_end(0, lambda: ended.append(0))
    connection.at_end(1, lambda: ended.append(1))
    world.handled[0].respond_small(b"")
    connection.connection_lost(None)
    assert ended == [1]
    connection.at_end(1, lambda: ended.append(2))
    assert ended == [1, 2]


def test_a_connection_that_ended_is_released_at_once(world: World) -> None:
    """NET-2: not only by the garbage collector, which looks at old objects very rarely."""
    connection, transport = world.connect()
    receive(connection, transport, frame(1) + frame(2))
    world.turns.run()
    world.handled[0].respond([b"one"])
    world.turns.run()
    gc.collect()
    gc.disable()
    try:
        connection.connection_lost(None)
        world.turns.run()
        world.handled.clear()
        kept = weakref.ref(connection)
        del connection
        assert kept() is None
    finally:
        gc.enable()
