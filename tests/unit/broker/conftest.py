"""Fixtures of the tests that drive replica managers by hand (`tests.support.replica_cluster`)."""

from __future__ import annotations

import pytest

from broker.replication.replica_fetcher import ReplicaFetcher


@pytest.fixture
def fetchers_are_driven_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetcher begins no task: the test says when it asks and fetches."""
    monkeypatch.setattr(ReplicaFetcher, "start", lambda self: None)
