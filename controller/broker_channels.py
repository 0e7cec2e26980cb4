"""One ordered queue of requests for each live broker (CTL-15, BUG-4), and a watch of its process (CTL-16).

One request is in flight at a time. A failed request is retried unchanged until the broker answers it or is removed: a dropped
LeaderAndIsr would leave a partition without its leader for ever. A connection that was closed here may still deliver a request late.
The requests of a term are numbered, so that the broker recognises such a request (FLT-18).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Set

from controller.announcements import ControllerRequest
from controller.event_log import EventLog, NoEventLog
from protocol.failure_detection.connection_watch import Closable
from protocol.rpc.client import ControlClient
from protocol.rpc.messages import ControlResponse, StopReplicaRequest
from protocol.types import BrokerInfo

log = logging.getLogger(__name__)

RETRY_S = 0.05

Answered = Callable[[int, ControllerRequest, ControlResponse], None]
WatchBroker = Callable[[BrokerInfo, tuple[str, int]], Closable | None]
"""Starts to watch this life of a broker, at the address of its control listener. None if the broker is not watched."""


class _Channel:
    """The queue of one life of one broker."""

    def __init__(
        self,
        broker: BrokerInfo,
        address: tuple[str, int],
        client: ControlClient,
        answered: Answered,
        events: EventLog,
    ) -> None:
        self._events = events
        self._broker = broker
        self._address = address
        self._client = client
        self._answered = answered
        self._waiting: deque[tuple[ControllerRequest, asyncio.Future[ControlResponse]]] = deque()
        self._there_is_work = asyncio.Event()
        self.is_failing = False
        """True while the oldest request is being retried: it could not be sent, or was not answered."""
        self._task = asyncio.get_running_loop().create_task(self._send_all(), name=f"channel to broker {broker.id}")

    def __len__(self) -> int:
        """Requests that are not answered."""
        return len(self._waiting)

    def put(self, request: ControllerRequest) -> asyncio.Future[ControlResponse]:
        answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._there_is_work.set()
        return answer

    @property
    def last_answer(self) -> asyncio.Future[ControlResponse] | None:
        """The answer to the last queued request; None if all are answered."""
        return self._waiting[-1][1] if self._waiting else None

    def close(self) -> None:
        """Drops the queue and the connection. The answers to waiting requests are cancelled."""
        self._task.cancel()
        self._client.disconnect(self._address)
        for _, answer in self._waiting:
            answer.cancel()

    async def _send_all(self) -> None:
        while True:
            await self._there_is_work.wait()
            while self._waiting:
                request, answer = self._waiting[0]
                about = _about(self._broker.id, request)
                self._events.write(
                    "control_request_sent", **about, partitions=len(request.partitions), is_full=_is_full(request)
                )
                response = await self._send(request)
                refused = len(response.partitions)
                self._events.write(
                    "control_request_answered", **about, error=response.error.name, refused_partitions=refused
                )
                self._waiting.popleft()
                if not answer.done():
                    answer.set_result(response)
                self._answered(self._broker.id, request, response)
            self._there_is_work.clear()

    async def _send(self, request: ControllerRequest) -> ControlResponse:
        level = logging.INFO
        while True:
            try:
                response = await self._client.send(self._address, request)
                self.is_failing = False
                return response
            except (OSError, ValueError, TypeError) as error:  # a lost connection, a timeout, or a malformed answer
                log.log(level, "retrying %s to broker %d: %s", type(request).__name__, self._broker.id, error)
                if level == logging.INFO:
                    reason = str(error) or type(error).__name__
                    self._events.write("control_request_retried", **_about(self._broker.id, request), reason=reason)
                level = logging.DEBUG
                self.is_failing = True
            except Exception:
                # The channel's boundary: if this task ended, the broker would receive no more requests.
                log.exception("retrying %s to broker %d", type(request).__name__, self._broker.id)
                self.is_failing = True
            await asyncio.sleep(RETRY_S)


def _about(broker_id: int, request: ControllerRequest) -> dict[str, object]:
    """The fields that join a request's events here with those of the broker that gets it."""
    name = type(request).__name__.removesuffix("Request")
    return {
        "broker": broker_id,
        "request": name,
        "controller_epoch": request.controller_epoch,
        "number": request.number,
    }


def _is_full(request: ControllerRequest) -> bool:
    return not isinstance(request, StopReplicaRequest) and request.is_full


class BrokerChannels:
    """The channels to all live brokers. `listener` names the control plane's listener."""

    def __init__(
        self,
        client: ControlClient,
        listener: str,
        answered: Answered,
        watch: WatchBroker = lambda broker, address: None,
        events: EventLog | None = None,
    ) -> None:
        self._events = events or NoEventLog()
        self._client = client
        self._listener = listener
        self._answered = answered
        self._watch = watch
        self._channels: dict[int, _Channel] = {}
        self._watches: dict[int, Closable] = {}
        self.last_number = 0
        """The number of the last request that was queued."""
        self._is_closed = False

    def add(self, broker: BrokerInfo) -> None:
        """Opens the channel to a broker that registered. A broker without a control listener is not ottla's: it is logged and ignored."""
        self.remove(broker.id)
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            log.error("broker %d has no listener %s: the controller cannot reach it", broker.id, self._listener)
        elif not self._is_closed:
            address = (endpoint.host, endpoint.port)
            self._channels[broker.id] = _Channel(broker, address, self._client, self._answered, self._events)
            watch = self._watch(broker, address)
            if watch is not None:
                self._watches[broker.id] = watch

    def remove(self, broker_id: int) -> None:
        """Drops the queue and the watch of a broker that died or registered again."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()
        watch = self._watches.pop(broker_id, None)
        if watch is not None:
            watch.close()

    def send(self, broker_id: int, request: ControllerRequest) -> asyncio.Future[ControlResponse] | None:
        """Queues the request. Returns its future answer, which is cancelled when the broker is removed; None if there is no channel."""
        channel = self._channels.get(broker_id)
        if channel is None:
            return None
        self.last_number += 1
        return channel.put(dataclasses.replace(request, number=self.last_number))

    def queue_sizes(self) -> dict[int, int]:
        """Broker id -> requests that it has not answered."""
        return {broker_id: len(channel) for broker_id, channel in list(self._channels.items())}

    def reached(self, broker_ids: Set[int]) -> Set[int]:
        """Those of the brokers that the controller can reach, as far as it knows. Planned moves of leadership prefer them."""
        channels = self._channels
        return {broker for broker in broker_ids if broker in channels and not channels[broker].is_failing}

    async def answering(self, broker_ids: Collection[int], within_s: float) -> frozenset[int]:
        """Those of the brokers that answer all their requests within `within_s`, which proves that their processes are alive."""
        last = {broker: self._channels[broker].last_answer for broker in broker_ids if broker in self._channels}
        waiting = [answer for answer in last.values() if answer is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s)
        return frozenset(
            b for b, answer in last.items() if answer is None or (answer.done() and not answer.cancelled())
        )

    def close(self) -> None:
        """Closes all channels at the end of the term. Later requests are not sent."""
        self._is_closed = True
        for broker_id in list(self._channels):
            self.remove(broker_id)
