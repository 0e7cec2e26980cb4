"""Requests that cannot be read: the connection ends with the reason, whatever way the API's handler runs (BAD-10, BAD-11)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis.table import HANDLERS
from broker.clock import SystemClock
from broker.network.request_channel import Request
from broker.request_handler import RequestHandler
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import is_flexible, parse_request_header, request_header


class Connection:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.hold = 0
        self.listener = "PLAINTEXT"
        self.peer = "test"
        self.is_open = True

    def close(self, reason: str) -> None:
        self.reasons.append(reason)

    def handle_waiting(self) -> None:
        """Nothing waits."""


@pytest.mark.parametrize("api_key", sorted(HANDLERS.keys() - {ApiKey.API_VERSIONS}))
def test_a_body_that_cannot_be_read_is_malformed(api_key: ApiKey) -> None:
    async def play() -> None:
        version = SUPPORTED[api_key].max
        frame = memoryview(
            request_header(api_key, version, 1, "test", flexible=is_flexible(api_key, version)) + b"\xff" * 9
        )
        connection = Connection()
        handler = RequestHandler(cast(Any, SimpleNamespace(clock=SystemClock())))
        handler.handle(Request(cast(Any, connection), 0, parse_request_header(frame), frame, 0.0))
        while handler._tasks:
            await asyncio.wait(handler._tasks)
        assert [reason.split()[0] for reason in connection.reasons] == ["malformed"]

    asyncio.run(play())
