"""The loops that a broker may run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """The test runs once on each."""
    new: Callable[[], asyncio.AbstractEventLoop] = request.param
    return new
