"""Waiting for the metadata cache ends, whatever the request says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.requests import waiting
from tests.support.fake_time import FakeTime


async def test_the_number_and_the_time_of_waiters_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITERS_MAX", 3)
    monkeypatch.setattr(waiting, "WAIT_MAX_S", 0.05)
    context: Any = SimpleNamespace(metadata=MetadataCache(), clock=FakeTime())
    tasks = [asyncio.create_task(waiting.until(context, lambda: False, 2.0**31)) for _ in range(5)]
    await asyncio.sleep(0)
    assert context.metadata.listener_count == 3
    context.clock.now += 1  # beyond the deadline, when they look at it
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert context.metadata.listener_count == 0
