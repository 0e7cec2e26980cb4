"""The server of the control-plane listener (FMT-4): frames in, one answer each, in order.

    int32 length | int32 correlation id | msgpack body            (both directions)

A listener of its own, so that a flood of client requests never delays a leadership change. Requests of all connections
that change state are applied one after the other; ControlledShutdown, which waits for the controller's work, is not in
that queue. A connection that sends anything else is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.control.fencing import BrokerEpochFence, NewestRequest
from broker.control.leader_and_isr import LeaderAndIsrHandler, LoadCreationZxids, LoadTopicOverrides
from broker.control.steps import StepByStep
from broker.control.stop_replica import stop_replica
from broker.control.update_metadata import update_metadata
from broker.replication.leadership_changes import YOUNGEST
from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.rpc import framing
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 128 * 1024**2
FRAME_TIMEOUT_S = 60.0
CONNECTIONS_MAX = 256
"""Of controllers, and of brokers that watch whether this one lives."""
LARGE_FRAME_BYTES = 64 * 1024
"""A larger frame is unpacked in steps, and others have their turn before it is carried out."""

ControlledShutdownHandler = Callable[[ControlledShutdownRequest], Awaitable[ControlResponse]]


def _nothing() -> None:
    """Nobody listens."""


class ControlListener:
    """`controlled_shutdown` is the controller's; it answers NOT_CONTROLLER when it is not active. `much_is_new`: see `StepByStep`.

    `when_registered` returns once this life of the broker is registered: until then nobody can tell whether a request is for
    this life or an earlier one, so requests wait (STA-3). `ask_for_everything` and
    `load_created`: see `LeaderAndIsrHandler`.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        own_broker_epoch: Callable[[], int],
        load_topic_overrides: LoadTopicOverrides,
        controlled_shutdown: ControlledShutdownHandler,
        when_registered: Callable[[], Awaitable[None]] | None = None,
        ask_for_everything: Callable[[], None] = _nothing,
        load_created: LoadCreationZxids | None = None,
        much_is_new: Callable[[], None] = _nothing,
    ) -> None:
        self._replica_manager = replica_manager
        self._fence = BrokerEpochFence(own_broker_epoch, replica_manager)
        self._newest = NewestRequest()
        self._steps = StepByStep(self._fence, replica_manager.budget, much_is_new)
        self._one_at_a_time = asyncio.Lock()
        self._leader_and_isr = LeaderAndIsrHandler(
            self._fence,
            self._steps,
            replica_manager,
            load_topic_overrides,
            load_created or _none_is_older,
            self._one_at_a_time,
            ask_for_everything,
        )
        self._controlled_shutdown = controlled_shutdown
        self._when_registered = when_registered or _at_once
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}
        self.connections_max = CONNECTIONS_MAX
        """Set to the control plane's share of the descriptors."""

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port (`port` 0: a free one). Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._connected, host or None, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._leader_and_isr.close()

    async def handle(self, request: ControlRequest) -> ControlResponse:
        """The routing table."""
        if isinstance(request, ControlledShutdownRequest):
            return await self._controlled_shutdown(request)
        refusal = self._fence.refusal(request.broker_epoch)
        if refusal is not None:
            return refusal
        await self._when_registered()
        async with self._one_at_a_time:
            refusal = self._newest.refusal(request)
            if refusal is not None:
                return refusal
            match request:
                case LeaderAndIsrRequest():
                    return await self._leader_and_isr.handle(request)
                case UpdateMetadataRequest():
                    return await update_metadata(self._steps, self._replica_manager, request)
                case StopReplicaRequest():
                    response = await stop_replica(self._steps, self._replica_manager, request)
                    if response.error is ErrorCode.NONE:
                        self._leader_and_isr.stopped(request)
                    return response

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._make_room()
        self._silent[task] = None
        peer = writer.get_extra_info("peername")
        try:
            while True:
                frame = await _read_frame(reader)
                if frame is None:
                    return
                correlation_id, request = await _parse(frame)
                self._silent.pop(task, None)
                response = await self.handle(request)
                writer.write(framing.response_frame(correlation_id, response))
                await writer.drain()
        except (ValueError, TypeError, TimeoutError) as error:
            log.warning("control connection of %s closed: %s", peer, error)
        except (ConnectionError, asyncio.IncompleteReadError):
            log.debug("control connection of %s ended", peer)
        except asyncio.CancelledError:
            # Not raised on: only `close` cancels, and asyncio's streams would log it as an error.
            log.debug("control connection of %s cancelled", peer)
        except Exception:
            # The connection's boundary: the controller asks again on another one.
            log.exception("a control request of %s failed", peer)
        finally:
            self._connections.discard(task)
            self._silent.pop(task, None)
            writer.close()

    def _make_room(self) -> None:
        """With too many connections, the oldest end that have not asked for anything: a controller must come through (BAD-34).

        Who only watches whether this process lives connects again, and finds that it does (CTL-16).
        """
        surplus = len(self._connections) - max(self.connections_max, 1)
        for oldest in list(self._silent)[: max(surplus, 0)]:
            del self._silent[oldest]
            self._connections.discard(oldest)
            oldest.cancel()


async def _none_is_older(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Every partition is younger than the disks."""
    return dict.fromkeys(partitions, YOUNGEST)


async def _at_once() -> None:
    """Registered already."""


async def _parse(frame: bytes) -> tuple[int, ControlRequest]:
    """Raises ValueError or TypeError."""
    if len(frame) <= LARGE_FRAME_BYTES:
        return framing.parse_request(frame)
    steps = framing.parsing_request(frame)
    parsed: tuple[int, ControlRequest] | None = None
    while parsed is None:
        try:
            next(steps)
        except StopIteration as end:
            parsed = end.value
        await asyncio.sleep(0)
    return parsed


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """A frame after its length; None at the end. The buffer grows as bytes arrive (BAD-4). Raises ValueError."""
    try:
        head = await reader.readexactly(LENGTH_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    length = int.from_bytes(head, "big", signed=True)
    if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX:
        raise ValueError(f"frame length {length}")
    # Not asyncio.wait_for: Python 3.11's loses a cancellation that comes together with the bytes.
    async with asyncio.timeout(FRAME_TIMEOUT_S):
        return await reader.readexactly(length)
