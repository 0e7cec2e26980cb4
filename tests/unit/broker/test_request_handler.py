"""Requests that cannot be decoded: the connection is closed with the reason, however the API's handler runs (BAD-10, BAD-11)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker import request_handler
from broker.apis.table import HANDLERS
from broker.network.request_channel import Request
from broker.process.clock import SystemClock
from broker.request_handler import RequestHandler
from broker.requests.long_answers import LongAnswers
from broker.requests.steps import Steps, respond_in_steps
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.kafka.framing import is_flexible, parse_request_header, request_header
from tests.support.api_world import FakeConnection, quotas


async def closed_for(frame: bytes) -> list[str]:
    """Why the connection is closed when this request comes."""
    connection = FakeConnection()
    clock = SystemClock()
    context = SimpleNamespace(clock=clock, long_answers=LongAnswers(clock.monotonic), authorizer=None, quotas=quotas())
    handler = RequestHandler(cast(Any, context))
    handler.handle(Request(cast(Any, connection), 0, parse_request_header(frame), memoryview(frame), 0.0))
    while handler._tasks:
        await asyncio.wait(handler._tasks)
    return connection.reasons


@pytest.mark.parametrize("api_key", sorted(HANDLERS.keys() - {ApiKey.API_VERSIONS}))
async def test_a_body_that_cannot_be_read_is_malformed(api_key: ApiKey) -> None:
    version = SUPPORTED[api_key].max
    header = request_header(api_key, version, 1, "test", flexible=is_flexible(api_key, version))
    (reason,) = await closed_for(header + b"\xff" * 9)
    assert reason.startswith("malformed ")


HEADER = request_header(ApiKey.LIST_GROUPS, 0, 1, "test", flexible=False)


async def test_a_request_that_is_too_large_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handler, "REQUEST_BYTES_MAX", 100)
    read: list[Request] = []
    handlers = dict.fromkeys((ApiKey.LIST_GROUPS, ApiKey.PRODUCE), lambda _, request: read.append(request))
    monkeypatch.setattr(request_handler, "HANDLERS", handlers)
    produce = request_header(ApiKey.PRODUCE, 3, 1, "test", flexible=False)
    assert await closed_for(HEADER + bytes(50)) == await closed_for(produce + bytes(100)) == []
    assert len(read) == 2
    (reason,) = await closed_for(HEADER + bytes(100))
    assert reason.endswith("the limit is 100")
    assert len(read) == 2


@pytest.mark.parametrize("is_long", [False, True])
async def test_an_answer_that_would_be_too_large_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    def answer() -> Steps:
        for _ in range(3):
            yield
        raise AnswerTooLarge

    handlers = {ApiKey.LIST_GROUPS: lambda context, request: respond_in_steps(context, request, answer())}
    if is_long:
        monkeypatch.setattr(LongAnswers, "begin", lambda *_: (False, None))
    monkeypatch.setattr(request_handler, "HANDLERS", handlers)
    (reason,) = await closed_for(HEADER)
    assert "would have more than 104857600 bytes" in reason


async def test_a_large_request_counts_until_it_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes count towards queued.max.request.bytes until its handler has ended."""
    done = asyncio.Event()

    async def long(context: Any, request: Request) -> None:
        await done.wait()

    monkeypatch.setattr(request_handler, "HANDLERS", {ApiKey.LIST_GROUPS: long})
    handler = RequestHandler(cast(Any, SimpleNamespace(authorizer=None, quotas=quotas())))
    connection = FakeConnection()
    request = Request(cast(Any, connection), 0, parse_request_header(HEADER), memoryview(HEADER), 0.0, 70_000)
    handler.handle(request)
    await asyncio.sleep(0)
    assert (request.keeps_frame, connection.freed) == (True, [])
    done.set()
    await asyncio.wait(handler._tasks)
    assert connection.freed == [request]
