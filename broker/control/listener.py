"""The control-plane listener: what the controller tells this broker, and what other brokers ask its controller.

A listener of its own, so that a flood of client requests never delays a leadership change. Requests of all connections
that change state are applied one after the other; ControlledShutdown, which waits for the controller's work, is not in
that queue. A connection that sends anything else is closed.

Anybody may have sent a request. In this order it is looked at:

1. the head: the broker epoch is this life's (`fencing`), the controller is the one that ZooKeeper names (`confirmation`);
2. in the queue, the rest is unpacked and checked (`protocol.rpc.parsing`), in steps;
3. it is not older than what was carried out before (`fencing`).

So only the controller's requests wait for each other, and one of them at a time is in memory unpacked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

from broker.control.confirmation import Confirmation
from broker.control.connections import CONNECTIONS_MAX, Connection, ControlConnections
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
from protocol.rpc.parsing import Head
from protocol.types import TopicPartition

StateRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Parsing = Generator[Head | None, None, tuple[int, ControlRequest]]
ControlledShutdownHandler = Callable[[ControlledShutdownRequest], Awaitable[ControlResponse]]


def _nothing() -> None:
    """Nobody listens."""


class ControlListener:
    """`controlled_shutdown` is the controller's; it answers NOT_CONTROLLER when it is not active. `much_is_new`: see `StepByStep`.

    `when_registered` returns once this life of the broker is registered: until then nobody can tell whether a request is for
    this life or an earlier one, so requests wait (STA-3). `ask_for_everything` and
    `load_created`: see `LeaderAndIsrHandler`. Without a `confirmation` every sender is believed.
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
        self._own_broker_epoch = own_broker_epoch
        self._confirmation = confirmation
        self._connections = ControlConnections(self._answer)

    def limit_connections(self, count: int) -> None:
        """To the control plane's share of the descriptors."""
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
        """Raises NotConfirmed."""
        if isinstance(request, ControlledShutdownRequest):
            return await self._controlled_shutdown(request)
        return await self._in_turn(
            request.controller_id, request.controller_epoch, request.broker_epoch, lambda: _ready(request)
        )

    async def _answer(self, connection: Connection, frame: bytearray) -> bytes:
        """Of `ControlConnections`: raises ValueError."""
        steps = framing.parsing_request(frame)
        head = next(steps)
        assert head is not None

        async def parsed() -> StateRequest:
            connection.is_busy = True
            request = await _finished(steps)
            assert not isinstance(request, ControlledShutdownRequest)
            connection.is_trusted = True
            return request

        if head.controller_id is None:
            request = await _finished(steps)
            assert isinstance(request, ControlledShutdownRequest)
            response = await self._controlled_shutdown(request)
        else:
            response = await self._in_turn(head.controller_id, head.controller_epoch, head.broker_epoch, parsed)
        return framing.response_frame(head.correlation_id, response)

    async def _in_turn(
        self,
        controller_id: int,
        controller_epoch: int,
        broker_epoch: int,
        parsed: Callable[[], Coroutine[Any, Any, StateRequest]],
    ) -> ControlResponse:
        refusal = self._fence.refusal(broker_epoch)
        if refusal is not None:
            return refusal
        await self._when_registered()
        if self._confirmation is not None:
            # Not in the queue: while ZooKeeper is asked about somebody's claim, the known controller's requests go on.
            if broker_epoch > self._own_broker_epoch():
                await self._confirmation.of_broker_epoch(broker_epoch)
            await self._confirmation.of_controller(controller_id, controller_epoch)
        async with self._one_at_a_time:
            return await self._carry_out(await parsed())

    async def _carry_out(self, request: StateRequest) -> ControlResponse:
        """The routing table."""
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


async def _none_is_older(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Every partition is younger than the disks."""
    return dict.fromkeys(partitions, YOUNGEST)


async def _at_once() -> None:
    """Registered already."""


async def _ready(request: StateRequest) -> StateRequest:
    """Parsed already."""
    return request


async def _finished(steps: Parsing) -> ControlRequest:
    """What `steps` come to, while others have their turn. Raises ValueError."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ControlRequest = end.value[1]
            return request
        await asyncio.sleep(0)
