"""Brokers that only acknowledge: they read and drop the controller's requests, so that only the controller's work is measured."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

from protocol.rpc import framing
from protocol.rpc.messages import ControlResponse
from protocol.types import BrokerInfo, Endpoint
from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode

LISTENER = "CONTROL"
HOST = "127.0.0.1"
READ_BYTES_MAX = 1024**2
QUIET_S = 0.4
POLL_S = 0.01


class AcknowledgingBrokers:
    """All brokers of the bench, registered in one session, each with its own listener.

    `last_answer` is the time (time.monotonic, shared by all processes of a machine) of the latest acknowledgement.
    `requests` and `received_bytes` count from the last `reset`.
    """

    def __init__(self, zk: ZooKeeperSession) -> None:
        self._zk = zk
        self._servers: dict[int, asyncio.Server] = {}
        self.last_answer = 0.0
        self.requests = 0
        self.received_bytes = 0

    async def register(self, broker: int) -> None:
        """Registers the broker and opens its listener."""
        loop = asyncio.get_running_loop()
        if broker not in self._servers:
            self._servers[broker] = await loop.create_server(lambda: _Connection(self), HOST, 0)
        port = self._servers[broker].sockets[0].getsockname()[1]
        info = BrokerInfo(broker, -1, (Endpoint(LISTENER, HOST, port),))
        await self._zk.create(
            BrokerIdZNode.path(broker), BrokerIdZNode.encode(info, 0), ephemeral=True, make_parents=True
        )

    async def deregister(self, broker: int) -> None:
        """Removes the broker's registration, so that it counts as dead."""
        await self._zk.delete(BrokerIdZNode.path(broker))

    def reset(self) -> None:
        self.requests = self.received_bytes = 0
        self.last_answer = 0.0

    def acknowledged(self, frame_bytes: int) -> None:
        self.requests += 1
        self.received_bytes += frame_bytes
        self.last_answer = time.monotonic()

    async def quiet(self, requests: int, timeout_s: float, quiet_s: float = QUIET_S) -> None:
        """Returns when at least `requests` requests have arrived, and none for `quiet_s`. Raises TimeoutError."""
        begin = time.monotonic()
        async with asyncio.timeout(timeout_s):
            while True:
                await asyncio.sleep(POLL_S)
                if self.requests >= requests and time.monotonic() - max(begin, self.last_answer) >= quiet_s:
                    return

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


class _Connection(asyncio.BufferedProtocol):
    """Counts the bytes of a frame, keeps its correlation id, and answers at the end of the frame."""

    def __init__(self, brokers: AcknowledgingBrokers) -> None:
        self._brokers = brokers
        self._buffer = memoryview(bytearray(READ_BYTES_MAX))
        self._head = b""
        self._left = 0
        self._frame_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        while at < nbytes:
            if len(self._head) < 8:
                taken = bytes(self._buffer[at : min(nbytes, at + 8 - len(self._head))])
                self._head += taken
                at += len(taken)
                if len(self._head) == 8:
                    self._frame_bytes = 4 + struct.unpack_from(">i", self._head)[0]
                    self._left = self._frame_bytes - 8
            else:
                taken_bytes = min(self._left, nbytes - at)
                self._left -= taken_bytes
                at += taken_bytes
            if len(self._head) == 8 and self._left == 0:
                self._answer()

    def _answer(self) -> None:
        (correlation_id,) = struct.unpack_from(">i", self._head, 4)
        self._head = b""
        assert self._transport is not None
        with contextlib.suppress(RuntimeError):  # the transport is closing
            self._transport.write(framing.response_frame(correlation_id, ControlResponse()))
        self._brokers.acknowledged(self._frame_bytes)
