"""The time of a request is measured wherever the loop works for it, and its throttle time is put into any answer (KIP-124)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import Coroutine, Generator
from typing import Any, cast

import pytest

from broker.network.request_channel import Request
from broker.quotas.client_quotas import Quotas
from broker.requests import request_time
from broker.requests.request_time import MeasuredCoroutine, RequestTime, measured, with_throttle_time
from broker.settings.config import BrokerConfig
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import parse_request_header, response_header
from tests.support.api_world import FakeConnection

BY_THEMSELVES = {ApiKey.PRODUCE, ApiKey.FETCH}
"""They put it into their answers themselves."""
VERSIONS = [
    (key, version)
    for key, (low, high) in SUPPORTED.items()
    for version in range(low, high + 1)
    if key not in BY_THEMSELVES
]
WITHOUT = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS}
MIDDLE = datetime.timedelta(milliseconds=1234)


def empty(kind: type) -> dict[str, Any]:
    """A response without rows."""
    body: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, kind)):
        text = str(field.type)
        is_array = "tuple[" in text
        is_text = "str" in text and "struct" not in text
        body[field.name] = () if is_array else None if "None" in text else "" if is_text else 0
        if "bytes" in text and not is_array and "None" not in text:
            body[field.name] = b""
    return body


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_any_answer_can_have_a_throttle_time(api_key: ApiKey, version: int, pieces: int) -> None:
    body = messages.encode_response(api_key, version, empty(messages.response_schema(api_key, version)))
    size = -(-len(body) // pieces)
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    changed = b"".join(map(bytes, with_throttle_time(api_key, version, parts, 1234)))
    frame = response_header(api_key, version, 7) + changed
    answer = messages.decode_response(
        api_key, version, frame[4:] if len(response_header(api_key, version, 7)) > 5 else frame
    )[1]
    if api_key in WITHOUT or messages.throttle_time_at(api_key, version) is None:
        assert changed == body
        return
    assert answer.throttle_time == MIDDLE
    again = with_throttle_time(api_key, version, [changed], 5)
    assert b"".join(map(bytes, again)) == changed, "the longer time stays"


def test_rows_before_the_throttle_time_of_api_versions() -> None:
    rows = [{"api_key": key, "min_version": 0, "max_version": 9} for key in range(200)]
    for version in (1, 2, 3, 4):
        body = messages.encode_response(
            ApiKey.API_VERSIONS, version, {"error_code": 0, "api_keys": rows, "throttle_time": 0}
        )
        changed = b"".join(map(bytes, with_throttle_time(ApiKey.API_VERSIONS, version, [body], 1234)))
        answer = messages.decode_response(ApiKey.API_VERSIONS, version, bytes(4) + changed)[1]
        assert (len(answer.api_keys), answer.throttle_time) == (200, MIDDLE)


class World:
    """A client with 10 % of the time; each look at the clock that `works` makes takes so long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.quotas = Quotas(BrokerConfig(), lambda: self.now)
        self.quotas.changed({"clients/test": {"request_percentage": "10"}})
        frame = messages.encode_request(ApiKey.LIST_GROUPS, 2, 1, "test", {})
        self.connection: Any = FakeConnection()
        self.muted: list[int] = []
        self.connection.mute = self.muted.append
        self.request = Request(self.connection, 0, parse_request_header(frame), frame, 0.0)
        toll = request_time.toll_of(self.quotas, self.request)
        assert toll is not None
        self.toll = toll

    def used_s(self) -> float:
        """The time that is recorded, in seconds: one percent of a second is 0.01."""
        meter = self.quotas.request.of("ANONYMOUS", "test", 0)
        assert meter is not None
        return meter.measure._total / 100


def test_who_has_no_quota_is_not_measured() -> None:
    world = World()
    world.quotas.changed({"clients/test": {}, "clients/other": {"request_percentage": "10"}})
    assert request_time.toll_of(world.quotas, world.request) is None


def test_the_time_of_the_handler_is_paid_for_with_the_answer() -> None:
    world = World()
    world.now += 1.05
    world.request.respond_small(
        messages.encode_response(ApiKey.LIST_GROUPS, 2, {"throttle_time": 0, "error_code": 0, "groups": ()})
    )
    assert world.muted == [500]
    assert messages.decode_response(ApiKey.LIST_GROUPS, 2, world.connection.sent[4:])[
        1
    ].throttle_time == datetime.timedelta(milliseconds=500)
    world.now += 0.5
    world.toll.end()
    assert world.used_s() == pytest.approx(1.55), "what it takes after the answer counts, too"
    assert world.muted == [500]


def test_steps_count_and_pauses_do_not() -> None:
    world = World()
    world.toll.end()

    def steps() -> Generator[Any, Any, str]:
        world.now += 0.1
        found = yield None
        world.now += 0.1
        try:
            yield found
        except OSError:
            world.now += 0.1
        return "done"

    running = measured(world.toll, steps())
    assert next(running) is None
    world.now += 10
    assert running.send("work") == "work"
    world.now += 10
    with pytest.raises(StopIteration) as end:
        running.throw(OSError())
    assert end.value.value == "done"
    world.toll.pay(world.request)
    assert world.used_s() == pytest.approx(0.3)


async def test_the_turns_of_a_coroutine_count_and_what_it_awaits_does_not() -> None:
    world = World()
    world.toll.end()
    waits = asyncio.Event()

    async def work() -> None:
        world.now += 0.1
        await waits.wait()
        world.now += 0.1

    async def run(coroutine: Coroutine[Any, Any, None], toll: RequestTime) -> None:
        await MeasuredCoroutine(toll, coroutine)

    task = asyncio.create_task(run(work(), world.toll))
    await asyncio.sleep(0)
    world.now += 10
    waits.set()
    await task
    world.toll.pay(world.request)
    assert world.used_s() == pytest.approx(0.2)


async def test_a_measured_coroutine_can_be_cancelled() -> None:
    world = World()
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run() -> None:
        await MeasuredCoroutine(world.toll, work())

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
