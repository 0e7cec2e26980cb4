"""A leader with one client, in one process and without sockets: from the bytes of a read to the buffers of the answer."""

from __future__ import annotations

import uuid
from typing import Any, cast

from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import RequestChannel
from broker.request_handler import RequestHandler
from protocol.kafka.fetch_codec import (
    FetchRequest,
    FetchRequestPartition,
    encode_request,
)
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.support.api_world import World
from tests.support.replica_cluster import Cluster
from tests.support.turns import Turns

BATCH_BYTES = 16 * 1024
LOG_BYTES = 8 * 1024 * 1024
RECORD_BYTES = 1000
TOPIC, TOPIC_ID = "t", uuid.UUID(int=77)
LEADER = 1
LIMITS = Limits(frame_bytes_max=1_000_000, in_flight_max=100, frame_timeout_s=5.0, idle_timeout_s=60.0)


class Taken:
    """A socket that keeps the last answer."""

    def __init__(self) -> None:
        self.last: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Also of the encryption: what cannot be sent from a file is read."""
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """There is no buffer."""

    def write(self, data: bytes) -> None:
        self.last = [data]

    def writelines(self, parts: list[bytes]) -> None:
        self.last = parts


class Broker:
    """The leader of partition 0, with one client."""

    def __init__(self, cluster: Cluster) -> None:
        world = World()
        self.manager = cluster.nodes[LEADER].manager
        world.context.replica_manager = self.manager
        world.context.fetches = self.manager.fetches
        self.time = cluster.time
        self._turns = Turns()
        handler = RequestHandler(cast(Any, world.context))
        channel = RequestChannel(
            self._turns, handler.handle, max_requests=500, max_large_bytes=-1, end_turn=handler.end_turn
        )
        self.manager.fetches.look_with(channel.at_end_of_turn)
        processor = Processor(
            channel, LIMITS, cast(Any, cluster.time), lambda connection: True, lambda connection: None
        )
        self.socket = Taken()
        self._client = ClientConnection(processor, "PLAINTEXT")
        self._client.connection_made(self.socket)  # type: ignore[arg-type]

    def send(self, frame: bytes) -> None:
        """A read with one request, as the loop does it, and the turns that it asks for."""
        self._client.get_buffer(-1)[: len(frame)] = frame
        self._client.buffer_updated(len(frame))
        self.look()

    def look(self) -> None:
        self._turns.run()
        self.time.turn()
        self._turns.run()

    def fill(self) -> None:
        batch = memoryview(build_batch([(None, bytes(RECORD_BYTES), [], 1000)] * (BATCH_BYTES // RECORD_BYTES)))
        for _ in range(LOG_BYTES // len(batch)):
            self.manager.appends.append(1, 1000, [(TopicPartition(TOPIC, 0), batch)], lambda results: None)
        self.time.turn()


def fetch_frame(version: int, offset: int, isolation_level: int = 0) -> bytes:
    """A Fetch request of a consumer without a session, with its length."""
    wanted = FetchRequestPartition(0, 0, offset, -1, -1, 64 * 1024)
    body = FetchRequest(
        replica_id=-1,
        replica_epoch=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 * 1024 * 1024,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[(TOPIC_ID if version >= 13 else TOPIC, [wanted])],
        forgotten=[],
    )
    frame = encode_request(version, 7, "test", body)
    return len(frame).to_bytes(4, "big") + frame
