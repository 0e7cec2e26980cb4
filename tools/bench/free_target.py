"""A broker that costs next to nothing: it answers each Produce request at once and keeps nothing.

It answers Metadata, InitProducerId and ListOffsets too, so that a replay accepts it. It leads every partition of one topic.

It relies on what the replay's producers send: the correlation id 0, and one partition in each request.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import struct
from multiprocessing.synchronize import Event
from typing import Any, Self, cast

import uvloop

from protocol.kafka import framing, messages
from protocol.kafka.api_keys import ApiKey

HOST = "127.0.0.1"
TOPIC = "free"
READ_BYTES = 1024 * 1024
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
_CLIENT_AT = 12
"""Where the client id's length stands: behind the frame's length, API key, version and correlation id."""


class FreeTarget:
    """The broker in a process of its own. Use it in a `with`."""

    def __init__(self, partitions: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._port = context.Value("i", 0)
        self._listens = context.Event()
        arguments = (partitions, self._port, self._listens)
        self._process = context.Process(target=serve, args=arguments, daemon=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port.value}"

    def __enter__(self) -> Self:
        """Raises RuntimeError."""
        self._process.start()
        if not self._listens.wait(START_TIMEOUT_S):
            self._process.kill()
            raise RuntimeError("the target did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(STOP_TIMEOUT_S)


def serve(partitions: int, port: Any, listens: Event) -> None:
    """Serves until the process ends. Sets `port` and `listens`."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(partitions, port.value), HOST, 0)
        port.value = server.sockets[0].getsockname()[1]
        listens.set()
        await server.serve_forever()

    uvloop.run(run())


class Connection(asyncio.BufferedProtocol):
    """Gathers a frame in one buffer; most reads have whole frames."""

    def __init__(self, partitions: int, port: int) -> None:
        self._partitions = partitions
        self._port = port
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._partition_at = 0
        """Where a Produce request has its partition, after its start; all requests of a client have it there. 0: not known yet."""
        self._produced: dict[bytes, bytes] = {}
        """The four bytes of a partition -> the answer."""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        buffer, at, answers = self._buffer, 0, []
        while self._filled - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end > self._filled:
                break
            answers.append(self._answer(at, end))
            at = end
        rest = self._filled - at
        self._buffer[:rest] = self._buffer[at : self._filled]
        self._filled = rest
        if answers:
            assert self._transport is not None
            self._transport.write(b"".join(answers))

    def _answer(self, at: int, end: int) -> bytes:
        buffer = self._buffer
        if buffer[at + 5] == ApiKey.PRODUCE:
            where = at + self._partition_at
            return self._produced.get(bytes(buffer[where : where + 4])) or self._first_answer(at)
        payload = other_answer(bytes(buffer[at + 4 : end]), self._partitions, self._port)
        return struct.pack(">i", len(payload)) + payload

    def _first_answer(self, at: int) -> bytes:
        """The answer of version 7 to a request with one partition, and for all later requests of the client with this partition."""
        buffer, begin = self._buffer, at
        at += _CLIENT_AT + 2 + int.from_bytes(buffer[at + _CLIENT_AT : at + _CLIENT_AT + 2], "big")
        at += 2 + 2 + 4 + 4  # transactional id, acks, time-out, number of topics
        topic_end = at + 2 + int.from_bytes(buffer[at : at + 2], "big")
        topic, partition = buffer[at:topic_end], bytes(buffer[topic_end + 4 : topic_end + 8])
        self._partition_at = topic_end + 4 - begin
        body = b"\0\0\0\0\0\0\0\1" + topic + b"\0\0\0\1" + partition + _PRODUCED
        answer = self._produced[partition] = struct.pack(">i", len(body)) + body
        return answer


_PRODUCED = struct.pack(">hqqqi", 0, 0, -1, 0, 0)
"""Error, base offset, append time, log start; throttle time."""


def other_answer(frame: bytes, partitions: int, port: int) -> bytes:
    """The answer to a request that is no Produce, without its length. Raises MalformedRequest."""
    header = framing.parse_request_header(frame)
    key, version = header.api_key, header.api_version
    answer: dict[str, Any]
    match key:
        case ApiKey.METADATA:
            answer = metadata(partitions, port)
        case ApiKey.INIT_PRODUCER_ID:
            answer = {"throttle_time": 0, "error_code": 0, "producer_id": 1, "producer_epoch": 0}
        case _:  # ListOffsets
            known = {"error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0}
            topics = [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": each.partition_index, **known} for each in topic.partitions],
                }
                for topic in messages.decode_request(key, version, frame, header.body_offset).topics
            ]
            answer = {"throttle_time": 0, "topics": topics}
    body = messages.encode_response(key, version, answer)
    return framing.response_header(key, version, header.correlation_id) + body


def metadata(partitions: int, port: int) -> dict[str, Any]:
    replicas = {"replica_nodes": [1], "isr_nodes": [1], "offline_replicas": []}
    known = {"error_code": 0, "leader_id": 1, "leader_epoch": 0, **replicas}
    of_topic = [{"partition_index": number, **known} for number in range(partitions)]
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": HOST, "port": port, "rack": None}],
        "cluster_id": "free",
        "controller_id": 1,
        "topics": [{"error_code": 0, "name": TOPIC, "is_internal": False, "partitions": of_topic}],
    }
