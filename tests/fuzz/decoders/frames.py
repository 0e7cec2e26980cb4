"""Where bytes of a socket become frames: the header of a request, the broker's side of a connection, and our clients' side."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast

from broker.network.connection import ClientConnection, Limits
from broker.network.frame_reader import SMALL_FRAME_MAX
from broker.network.processor import Processor
from broker.network.request_channel import Request, RequestChannel
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import (
    MalformedRequest,
    is_flexible,
    parse_request_header,
    read_unsigned_varint,
    request_header,
    unsigned_varint,
)
from protocol.network_client import NetworkClient, _Connection
from tests.fuzz.decoder import Decoder
from tests.support.turns import Turns

LIMITS = Limits(frame_bytes_max=200_000, in_flight_max=10, frame_timeout_s=5.0, idle_timeout_s=60.0)
_LENGTH = struct.Struct(">i")
PIECES_MAX = 64
"""A stream comes in so many pieces, and one more for each byte of the input. A piece costs 30 lines of Python.

Nine bytes of input can stand for a stream of 120,000 (`_inflated`).
"""


def decoders() -> list[Decoder]:
    return [
        Decoder("header", _header, _headers, (MalformedRequest,), bytes_max=200),
        Decoder("varint", _varint, _varints, (MalformedRequest,), bytes_max=16),
        Decoder("connection", _connection, _streams, memory=2 << 20, cpu_ms=80),
        Decoder("client-connection", _client_connection, _streams, memory=2 << 20, cpu_ms=80),
    ]


def _header(data: bytes) -> object:
    found = parse_request_header(memoryview(data))
    assert found.body_offset <= len(data)
    flexible = is_flexible(found.api_key, found.api_version)
    fields = found.api_key, found.api_version, found.correlation_id, found.client_id
    again = parse_request_header(request_header(*fields, flexible=flexible))
    assert (again.api_key, again.api_version, again.correlation_id, again.client_id) == fields
    return (*fields, found.body_offset)


def _headers() -> Iterator[bytes]:
    for key in SUPPORTED:
        for version in SUPPORTED[key]:
            flexible = is_flexible(key, version)
            yield request_header(key, version, 7, "client", flexible=flexible)
            yield request_header(key, version, -1, None, flexible=flexible)
    yield request_header(ApiKey.METADATA, 12, 1, "c", flexible=False) + b"\x02\x01\x03abc\x80\x01\x00"


def _varint(data: bytes) -> object:
    number, end = read_unsigned_varint(data, 0)
    assert 0 <= number < 1 << 35
    assert read_unsigned_varint(unsigned_varint(number), 0)[0] == number
    return end


def _varints() -> Iterator[bytes]:
    for bits in range(36):
        yield unsigned_varint((1 << bits) - 1)


# -- the broker's side ----------------------------------------------------------------------------------------------------


class _Transport:
    def __init__(self) -> None:
        self.is_reading = True
        self.is_closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 4711)

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None: ...

    def writelines(self, parts: list[bytes]) -> None: ...

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    abort = close


class _Clock:
    @staticmethod
    def monotonic() -> float:
        return 100.0

    @staticmethod
    def wall_ms() -> int:
        return 0


def _connection(data: bytes) -> object:
    """A stream in pieces; the first byte says how large. What comes out is what stands in the stream, whole and in order."""
    turns, transport = Turns(), _Transport()
    handled: list[Request] = []

    def handle(request: Request) -> None:
        handled.append(request)
        request.respond_small(b"")

    channel = RequestChannel(turns, handle, max_requests=5, max_large_bytes=100_000)
    processor = Processor(channel, LIMITS, cast(Any, _Clock()), lambda connection: True, lambda connection: None)
    connection = ClientConnection(processor, "PLAINTEXT")
    connection.connection_made(cast(Any, transport))
    stream = _inflated(data[1:])
    _fed(connection, data, stream, lambda: transport.is_closed, turns.run)
    turns.run()
    expected = _frames_of(stream, LIMITS.frame_bytes_max, 1)
    assert [bytes(request.frame) for request in handled] == expected, "other frames than were sent"
    connection.connection_lost(None)
    assert channel.large.bytes == 0
    return expected


def _fed(connection: Any, data: bytes, stream: bytes, ends: Callable[[], bool], between: Callable[[], None]) -> None:
    """The stream in pieces of the size that the first byte of `data` names, and in no more pieces than the input may cost."""
    pieces_max = PIECES_MAX + len(data)
    piece = max(1 << (data[0] % 18 if data else 17), -(-len(stream) // pieces_max))
    at = 0
    while at < len(stream) and not ends():
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(stream) - at, piece)
        assert size > 0, "no room in the buffer"
        buffer[:size] = stream[at : at + size]
        del buffer
        connection.buffer_updated(size)
        at += size
        between()


def _inflated(data: bytes) -> bytes:
    """Puts zeros behind each `*!`, as many as the next two bytes say: for frames that are larger than the fuzzer's inputs."""
    head, *rest = data.split(b"*!", 2)
    return b"".join((head, *(part[2:] + bytes(int.from_bytes(part[:2], "big") * 2) for part in rest)))


def _frames_of(stream: bytes, size_max: int, size_min: int) -> list[bytes]:
    """The frames that the stream announces, up to the first that is refused."""
    found = []
    at = 0
    while len(stream) - at >= 4:
        (size,) = _LENGTH.unpack_from(stream, at)
        if not size_min <= size <= size_max or at + 4 + size > len(stream):
            break
        frame = stream[at + 4 : at + 4 + size]
        if size_min == 1:
            try:
                parse_request_header(frame)
            except MalformedRequest:
                break
        found.append(frame)
        at += 4 + size
    return found


def _streams() -> Iterator[bytes]:
    random = Random(5)
    for count in range(1, 6):
        frames = []
        for number in range(count):
            body = request_header(ApiKey.METADATA, 1, number, "c", flexible=False) + random.randbytes(
                random.randint(0, 20)
            )
            frames.append(_LENGTH.pack(len(body)) + body)
        yield bytes((count,)) + b"".join(frames)
    head = request_header(ApiKey.METADATA, 1, 0, "c", flexible=False)
    for zeros in (SMALL_FRAME_MAX, 120_000):
        body = _LENGTH.pack(len(head) + zeros) + head + b"*!" + (zeros // 2).to_bytes(2, "big")
        yield b"\x0f" + body + _LENGTH.pack(len(head)) + head
    # What a client reads has a correlation id first.
    for count in (1, 3):
        yield bytes((17,)) + b"".join(_LENGTH.pack(6) + _LENGTH.pack(number) + b"ab" for number in range(count))


# -- our clients' side ----------------------------------------------------------------------------------------------------


class _NoLoop:
    """Futures without a loop: nobody waits for them."""

    def create_future(self) -> _Future:
        return _Future()

    def call_later(self, *arguments: Any) -> _Timer:
        return _Timer()


class _Timer:
    def cancel(self) -> None: ...


class _Future:
    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def set_result(self, result: Any) -> None:
        self.result = result

    def set_exception(self, error: Exception) -> None:
        self.error = error


REQUESTS = 5


def _client_connection(data: bytes) -> object:
    """Five requests are in flight; a stream of answers comes in pieces."""
    client = NetworkClient(
        _Clock(), request_timeout_ms=1000, random=lambda: 0.5, response_bytes_max=LIMITS.frame_bytes_max
    )
    transport = _Transport()
    connection = _Connection(client, ("peer", 1), cast(asyncio.AbstractEventLoop, _NoLoop()))
    for _ in range(REQUESTS):
        assert connection.slots._value > 0
        connection.slots._value -= 1
    connection.connection_made(cast(Any, transport))
    answers = [cast(Any, connection.request(lambda number: (b"r",))) for _ in range(REQUESTS)]
    stream = _inflated(data[1:])
    _fed(connection, data, stream, lambda: not connection.is_open, lambda: None)
    expected = []
    for number, frame in enumerate(_frames_of(stream, LIMITS.frame_bytes_max, 4)):
        if number >= REQUESTS or _LENGTH.unpack_from(frame)[0] != number:
            break
        expected.append(frame)
    assert [bytes(a.result) for a in answers if a.result is not None] == expected
    connection.connection_lost(None)
    assert all(answer.done() for answer in answers)
    return expected
