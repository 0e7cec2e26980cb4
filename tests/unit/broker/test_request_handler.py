"""Requests that cannot be decoded: the connection is closed with the reason, however the API's handler runs (BAD-10, BAD-11)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker import request_handler
from broker.network.request_channel import Request
from broker.process.clock import SystemClock
from broker.request_handler import RequestHandler
from broker.requests.long_answers import LongAnswers
from broker.requests.steps import Steps, respond_in_steps
from protocol.kafka.api_keys import ANSWERED, SERVED, SUPPORTED, ApiKey, ApiLevel
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.kafka.framing import is_flexible, parse_request_header, request_header
from tests.support.api_world import FakeConnection, quotas
from tests.support.fake_groups import FakeGroups


async def closed_for(frame: bytes, level: ApiLevel = ApiLevel.KAFKA_3_9) -> list[str]:
    """Why the connection is closed when this request comes."""
    connection = FakeConnection()
    clock = SystemClock()
    coordinator = FakeGroups()
    context = SimpleNamespace(
        clock=clock,
        long_answers=LongAnswers(clock.monotonic),
        authorizer=None,
        quotas=quotas(),
        groups=coordinator,
        transactions=coordinator,
    )
    handler = RequestHandler(cast(Any, context), level=level)
    handler.handle(Request(cast(Any, connection), 0, parse_request_header(frame), memoryview(frame), 0.0))
    while handler._tasks:
        await asyncio.wait(handler._tasks)
    return connection.reasons


BROKEN_BODIES = [
    (level, key) for level, served in SERVED.items() for key in sorted(served.keys() - {ApiKey.API_VERSIONS})
]


@pytest.mark.parametrize(("level", "api_key"), BROKEN_BODIES)
async def test_a_body_that_cannot_be_read_is_malformed(level: ApiLevel, api_key: ApiKey) -> None:
    version = SERVED[level][api_key].max
    header = request_header(api_key, version, 1, "test", flexible=is_flexible(api_key, version))
    (reason,) = await closed_for(header + b"\xff" * 9, level)
    assert reason.startswith("malformed ")


OF_ONE_LEVEL = [
    (level, key, version)
    for level, answered in ANSWERED.items()
    for key, versions in SUPPORTED.items()
    for version in range(versions.min, versions.max + 1)
    if key not in answered or not answered[key].min <= version <= answered[key].max
]


@pytest.mark.parametrize(("level", "api_key", "version"), OF_ONE_LEVEL)
async def test_a_request_of_the_other_level_is_unknown(level: ApiLevel, api_key: ApiKey, version: int) -> None:
    """BAD-6, BAD-7"""
    header = request_header(api_key, version, 1, "test", flexible=is_flexible(api_key, version))
    (reason,) = await closed_for(header + bytes(9), level)
    assert "unknown API key" in reason or "supported versions are" in reason


async def test_another_level_counts_from_the_next_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Request] = []
    handlers = {ApiKey.CREATE_TOPICS: lambda _, request: read.append(request)}
    monkeypatch.setattr(request_handler, "HANDLERS", handlers)
    header = request_header(ApiKey.CREATE_TOPICS, 0, 1, "test", flexible=False)
    handler = RequestHandler(cast(Any, SimpleNamespace(authorizer=None, quotas=quotas())), level=ApiLevel.KAFKA_4)
    connections = [FakeConnection(), FakeConnection()]
    for connection in connections:
        handler.handle(Request(cast(Any, connection), 0, parse_request_header(header), memoryview(header), 0.0))
        handler.serve(ApiLevel.KAFKA_3_9)
    assert "supported versions are v2 to v7" in connections[0].reasons[0]
    assert (connections[1].reasons, len(read)) == ([], 1)


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
