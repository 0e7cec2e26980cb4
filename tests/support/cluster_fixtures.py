"""For a conftest.py to import: a cluster of replica managers for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.replica_cluster import Cluster, ParkingEndpoint


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[Cluster]:
    """No broker is started yet. The test says when a fetcher asks and fetches."""
    with closing(Cluster(tmp_path)) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster: Cluster, runner: asyncio.Runner) -> Cluster:
    """Broker 1 leads the partition, and broker 2 follows it."""
    runner.run(cluster.start_led(1, 2))
    return cluster


@pytest.fixture
def live_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The fetchers run by themselves, and leaders park their fetches."""
    with closing(Cluster(tmp_path, endpoint=ParkingEndpoint)) as cluster:
        yield cluster
