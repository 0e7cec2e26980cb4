"""Fixtures of `tests.support.cluster_fixtures`."""

from tests.support.cluster_fixtures import cluster, live_cluster, pair

__all__ = ["cluster", "live_cluster", "pair"]
