"""Fixtures of the tests of commands: `ottla` against our cluster, `kafka` against a real Kafka, `cli` is one of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from protocol.zk.session import ZooKeeperSession
from tests.support.cli import Cli
from tests.support.zookeeper import ZooKeeperServer
from tests.support.zookeeper_sessions import open_session
from tools.cluster.local_cluster import LocalCluster


def cli_of(cluster: LocalCluster) -> Cli:
    return Cli(cluster.bootstrap_servers, list(cluster.broker_ids), cluster.zookeeper_connect)


@pytest.fixture
def ottla(shared_cluster: LocalCluster) -> Cli:
    return cli_of(shared_cluster)


@pytest.fixture
def kafka(shared_kafka: Cli) -> Cli:
    return shared_kafka


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Cli:
    """Ours, unless the test is marked with OURS_AND_KAFKAS."""
    found: Cli = request.getfixturevalue(getattr(request, "param", "ottla"))
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of the module's own."""
    with ZooKeeperServer() as running:
        yield running


@pytest.fixture
def session(server: ZooKeeperServer, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[ZooKeeperSession]:
    """In a chroot of its own."""
    return open_session(f"{server.connect}/{request.node.name}/x")
