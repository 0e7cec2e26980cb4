"""Fixtures of the tests of commands: `ottla` against our cluster, `kafka` against a real Kafka, `cli` is one of both."""

from __future__ import annotations

import pytest

from tests.support.cli import Cli
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
