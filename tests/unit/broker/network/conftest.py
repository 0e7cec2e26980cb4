"""Both kinds of loops, and certificates, for tests of listeners with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.support.certificates import Certificates


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
