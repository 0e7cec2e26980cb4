"""Fixtures of `tests.support.cluster_fixtures`."""

from tests.support.cluster_fixtures import cluster

__all__ = ["cluster"]
