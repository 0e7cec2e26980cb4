"""Unit tests collect little garbage."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay to the end: no collection need look at them, nor at each test's young objects twice."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs what other fixtures await, in the loop of the test."""
    with asyncio.Runner() as runner:
        yield runner
