"""Clients with deep pipelines against a real broker: all answers come, in order, and no connection is left behind (NET-1, NET-2)."""

from __future__ import annotations

import pytest

from tests.conftest import ClusterFactory
from tests.support.deep_pipelines import run_pipelines


@pytest.mark.parametrize("seconds", [5.0, pytest.param(30.0, marks=pytest.mark.thorough)])
def test_sixteen_clients_are_served_in_order(new_cluster: ClusterFactory, seconds: float) -> None:
    counts = run_pipelines(new_cluster(brokers=1), clients=16, seed=7, seconds=seconds)
    assert counts.answers["FETCH"] > 100
    assert counts.answers["PRODUCE"] > 100
