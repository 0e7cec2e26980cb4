from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_cluster import GroupCluster


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[GroupCluster]:
    """No broker runs yet."""
    cluster = GroupCluster(tmp_path, {})
    yield cluster
    cluster.close()


@pytest.fixture
def served(cluster: GroupCluster, runner: asyncio.Runner) -> GroupCluster:
    """Broker 1 coordinates the groups."""
    runner.run(cluster.start_serving(1))
    return cluster


@pytest.fixture
def pair(cluster: GroupCluster, runner: asyncio.Runner) -> GroupCluster:
    """Broker 1 coordinates the groups, and broker 2 has a replica of them."""
    runner.run(cluster.start_serving(1, 2))
    return cluster
