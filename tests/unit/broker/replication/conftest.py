"""Fixtures of `tests.support.cluster_fixtures`."""

from hypothesis import settings

from tests.support.cluster_fixtures import cluster, live_cluster, pytest_pyfunc_call, runner

__all__ = ["cluster", "live_cluster", "pytest_pyfunc_call", "runner"]

# On a busy machine an example takes as long as it takes.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
