"""The control-plane listener: takes the controller's requests, and ControlledShutdown if this process is the controller.

It is a separate listener, so that a leadership change does not wait in the queue of client requests. Requests that change state
are carried out one at a time, whatever connection they come from. ControlledShutdown is not queued with them: its answer waits
for requests of the controller, which may be for this broker and would be queued behind it. A connection that sends anything else is
closed.

Anybody can send a request. A request that changes state is checked here, in this order (ControlledShutdown is not checked):

1. Its head must not be for an earlier life of this broker (`fencing`). ZooKeeper is asked about a higher broker epoch or controller
   epoch. For the known controller epoch, the sender must be the known controller (`confirmation`).
2. When its turn comes, the rest of it is unpacked and checked in pieces (`protocol.rpc.parsing`).
3. It must not be older than a request that was carried out before (`fencing`).

Only the controller's requests wait for each other, and only one of them at a time is unpacked in memory.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

from broker.control.confirmation import Confirmation
from broker.control.connections import CONNECTIONS_MAX, Connection, ControlConnections, ControlLogins
from broker.control.fencing import BrokerEpochFence, NewestRequest
from broker.control.leader_and_isr import LeaderAndIsrHandler, LoadCreationZxids, LoadTopicOverrides
from broker.control.pauses import RequestPauses
from broker.process.event_log import EventLog
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
from protocol.rpc.parsing import Head
from protocol.types import TopicPartition

StateRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Parsing = Generator[Head | None, None, tuple[int, ControlRequest]]
ControlledShutdownHandler = Callable[[ControlledShutdownRequest], Awaitable[ControlResponse]]


def _nothing() -> None:
    """The default of the callbacks."""


class ControlListener:
    """`controlled_shutdown` is the controller's handler; it answers NOT_CONTROLLER when the controller is not active.
    `much_is_new`: see `RequestPauses`. `ask_for_everything` and `load_created`: see `LeaderAndIsrHandler`.
    `tls_context`, `logins`, `tls_refused`: see `ControlConnections`.

    `when_registered` returns once this life of the broker is registered. Requests wait for it, because until then the broker
    cannot tell whether a request is for this life or an earlier one (STA-3). Without a `confirmation` every sender is believed.
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
        confirmation: Confirmation | None = None,
        events: EventLog | None = None,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
        logins: ControlLogins | None = None,
        tls_refused: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        self._events = events
        self._replica_manager = replica_manager
        self._fence = BrokerEpochFence(own_broker_epoch, replica_manager)
        self._newest = NewestRequest()
        self._pauses = RequestPauses(self._fence, replica_manager.budget, much_is_new)
        self._one_at_a_time = asyncio.Lock()
        self._leader_and_isr = LeaderAndIsrHandler(
            self._pauses,
            replica_manager,
            load_topic_overrides,
            load_created or _none_is_older,
            self._one_at_a_time,
            ask_for_everything,
        )
        self._controlled_shutdown = controlled_shutdown
        self._when_registered = when_registered or _at_once
        self._own_broker_epoch = own_broker_epoch
        self._confirmation = confirmation
        self._connections = ControlConnections(self._answer, tls_context, logins, tls_refused)

    def limit_connections(self, count: int) -> None:
        """Sets the limit to `count`, the control plane's share of the descriptors, within 1 to CONNECTIONS_MAX."""
        self._connections.connections_max = max(1, min(count, CONNECTIONS_MAX))

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port (`port` 0: a free one). Raises OSError when it is taken."""
        return await self._connections.start(host, port)

    async def close(self) -> None:
        await self._connections.close()
        if self._confirmation is not None:
            self._confirmation.close()
        await self._leader_and_isr.close()

    async def handle(self, request: ControlRequest) -> ControlResponse:
        """Carries out a request that is already parsed. Raises NotConfirmed."""
        if isinstance(request, ControlledShutdownRequest):
            return await self._controlled_shutdown(request)
        return await self._in_turn(
            request.controller_id, request.controller_epoch, request.broker_epoch, lambda: _ready(request)
        )

    async def _answer(self, connection: Connection, frame: bytearray) -> bytes:
        """Called by ControlConnections for each frame. Raises ValueError to end the connection."""
        steps = framing.parsing_request(frame)
        head = next(steps)
        assert head is not None

        async def parsed() -> StateRequest:
            connection.is_busy = True
            request = await _finished(steps)
            assert not isinstance(request, ControlledShutdownRequest)
            return request

        if head.controller_id is None:
            request = await _finished(steps)
            assert isinstance(request, ControlledShutdownRequest)
            response = await self._controlled_shutdown(request)
        else:
            response = await self._in_turn(head.controller_id, head.controller_epoch, head.broker_epoch, parsed)
            connection.is_trusted |= response.error is ErrorCode.NONE
        return framing.response_frame(head.correlation_id, response)

    async def _in_turn(
        self,
        controller_id: int,
        controller_epoch: int,
        broker_epoch: int,
        parsed: Callable[[], Coroutine[Any, Any, StateRequest]],
    ) -> ControlResponse:
        if self._fence.is_stale(broker_epoch):
            return ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
        await self._when_registered()
        if self._confirmation is not None:
            # Before the queue: while ZooKeeper is asked about a claim, requests of the known controller are carried out.
            if broker_epoch > self._own_broker_epoch():
                await self._confirmation.of_broker_epoch(broker_epoch)
            await self._confirmation.of_controller(controller_id, controller_epoch)
        async with self._one_at_a_time:
            return await self._carry_out(await parsed())

    async def _carry_out(self, request: StateRequest) -> ControlResponse:
        if self._events is None:
            return await self._carried_out(request)
        about = {
            "request": type(request).__name__.removesuffix("Request"),
            "controller": request.controller_id,
            "controller_epoch": request.controller_epoch,
            "number": request.number,
        }
        self._events.write("control_request_received", **about, partitions=len(request.partitions))
        response = await self._carried_out(request)
        refused = len(response.partitions)
        self._events.write("control_request_done", **about, error=response.error.name, refused_partitions=refused)
        return response

    async def _carried_out(self, request: StateRequest) -> ControlResponse:
        refusal = self._newest.refusal(request)
        if refusal is not None:
            return refusal
        match request:
            case LeaderAndIsrRequest():
                return await self._leader_and_isr.handle(request)
            case UpdateMetadataRequest():
                return await self._pauses.carry_out(
                    request.broker_epoch, lambda pause: self._replica_manager.update_metadata(request, pause)
                )
            case StopReplicaRequest():
                response = await self._pauses.carry_out(
                    request.broker_epoch, lambda pause: self._replica_manager.stop_replicas(request, pause)
                )
                if response.error is ErrorCode.NONE:
                    self._leader_and_isr.stopped(request)
                return response


async def _none_is_older(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The default of `load_created`: every partition is younger than the disks."""
    return dict.fromkeys(partitions, YOUNGEST)


async def _at_once() -> None:
    """The default of `when_registered`: the broker is registered already."""


async def _ready(request: StateRequest) -> StateRequest:
    """For a request that is parsed already."""
    return request


async def _finished(steps: Parsing) -> ControlRequest:
    """The parsed request. The loop serves others between two pieces. Raises ValueError."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ControlRequest = end.value[1]
            return request
        await asyncio.sleep(0)
