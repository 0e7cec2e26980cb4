"""A connection to each broker that stays open. It breaks at once when the broker's process ends, and carries all requests.

Every half second a broker is asked for the brokers and the controller that it knows. One that does not answer in time is silent, for
example because it is paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.console.state import Seen
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.connection import BrokerConnection
from tools.wire.security import Security

CLIENT = "ottla-console"
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 1.0
ASK_EVERY_S = 0.5
RETRY_S = 0.1
RETRY_LONGEST_S = 1.0
METADATA_VERSION = 7
IN_A_THREAD_BYTES = 20_000
"""Larger answers are decoded in a thread, so that the page hears of a dead broker meanwhile."""


class NoAnswer(Exception):
    """A broker is not connected, or did not answer in time, or not in Kafka's protocol."""


class Links:
    """The connections. `on_change` is called after each change of `seen`."""

    def __init__(self, addresses: Mapping[int, Address], security: Security, on_change: Callable[[], None]) -> None:
        self.seen: dict[int, Seen] = {}
        self.answer_s: dict[int, float] = {}
        """Broker -> how long its last answer took, in seconds."""
        self._addresses: dict[int, Address] = {}
        self._client = Client(CLIENT, security)
        self._on_change = on_change
        self._connections: dict[int, BrokerConnection] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._given = dict(addresses)

    def start(self) -> None:
        for broker, address in sorted(self._given.items()):
            self.add(broker, address)

    def add(self, broker: int, address: Address) -> None:
        """Connects to a broker that is new, or that has another address now."""
        if self._addresses.get(broker) == address:
            return
        task = self._tasks.pop(broker, None)
        if task is not None:
            task.cancel()
        self._addresses[broker] = address
        self.seen[broker] = Seen(f"{address[0]}:{address[1]}")
        self._tasks[broker] = asyncio.get_running_loop().create_task(self._keep(broker, address))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(self, broker: int, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """kio's entity of the answer. Raises NoAnswer."""
        connection = self._connections.get(broker)
        if connection is None:
            raise NoAnswer(f"broker {broker} is not connected")
        try:
            frame = frames.request_frame(api_key, version, CLIENT, body)
            answer = await connection.ask(frame, ANSWER_TIMEOUT_S)
            if len(answer) < IN_A_THREAD_BYTES:
                return frames.answer(api_key, version, answer)
            return await asyncio.to_thread(frames.answer, api_key, version, answer)
        except TimeoutError:
            raise NoAnswer(f"broker {broker} does not answer") from None
        except (OSError, MalformedRequest) as problem:
            raise NoAnswer(f"broker {broker}: {problem}") from None

    async def _keep(self, broker: int, address: Address) -> None:
        """Keeps one connection open, for ever."""
        pause_s = RETRY_S
        while True:
            ended = asyncio.Event()

            def end(_: BrokerConnection, ended: asyncio.Event = ended) -> None:
                ended.set()

            try:
                connection = await self._client.connect(address, end, CONNECT_TIMEOUT_S)
            except (OSError, ConnectionError):
                self._set(broker, is_connected=False, is_silent=False, view=None)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_LONGEST_S)
                continue
            self._connections[broker] = connection
            asking = asyncio.get_running_loop().create_task(self._ask_again_and_again(broker))
            try:
                await ended.wait()
                pause_s = RETRY_S
            finally:
                asking.cancel()
                del self._connections[broker]
                connection.close()

    async def _ask_again_and_again(self, broker: int) -> None:
        body = {"topics": [], "allow_auto_topic_creation": False}
        while True:
            began = time.monotonic()
            try:
                answer = await self.ask(broker, ApiKey.METADATA, METADATA_VERSION, body)
            except NoAnswer:
                # A broker whose connection has just ended is not silent: `_keep` says what it is.
                if broker in self._connections and self._connections[broker].is_open:
                    self._set(broker, is_connected=True, is_silent=True)
            else:
                self.answer_s[broker] = time.monotonic() - began
                brokers = frozenset(int(each.node_id) for each in answer.brokers)
                self._set(broker, is_connected=True, is_silent=False, view=(brokers, int(answer.controller_id)))
                for each in answer.brokers:
                    if int(each.node_id) not in self._given:
                        self.add(int(each.node_id), (str(each.host), int(each.port)))
            await asyncio.sleep(max(0.0, began + ASK_EVERY_S - time.monotonic()))

    def _set(self, broker: int, **values: Any) -> None:
        seen = self.seen[broker]
        if any(getattr(seen, name) != value for name, value in values.items()):
            for name, value in values.items():
                setattr(seen, name, value)
            self._on_change()

    def set_paused(self, broker: int, is_paused: bool) -> None:
        with contextlib.suppress(KeyError):
            self._set(broker, is_paused=is_paused)
