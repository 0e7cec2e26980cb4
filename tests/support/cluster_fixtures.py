"""For a conftest.py to import: tests that are coroutines, and a cluster of replica managers for each test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.replica_cluster import Cluster, ParkingEndpoint


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in the loop of `runner`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem._request.getfixturevalue("runner").run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs what a fixture awaits, in the loop of the test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[Cluster]:
    """No broker is started yet. The test says when a fetcher asks and fetches."""
    with closing(Cluster(tmp_path)) as cluster:
        yield cluster


@pytest.fixture
def live_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The fetchers run by themselves, and leaders park their fetches."""
    with closing(Cluster(tmp_path, endpoint=ParkingEndpoint)) as cluster:
        yield cluster
