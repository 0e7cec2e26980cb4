"""Fixtures of the tests that drive replica managers by hand (`tests.support.replica_cluster`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from broker.process import loop_budget
from broker.process.loop_budget import LoopBudget
from broker.replication.following.replica_fetcher import ReplicaFetcher


@pytest.fixture
def fetchers_are_driven_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetcher begins no task: the test says when it asks and fetches."""
    monkeypatch.setattr(ReplicaFetcher, "start", lambda self: None)


@pytest.fixture
def a_pause_after_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long work ends its slice whenever it may, as if each piece took as long as a slice."""

    def pause(budget: LoopBudget) -> Awaitable[None]:
        return asyncio.sleep(0)

    monkeypatch.setattr(LoopBudget, "pause", pause)


@pytest.fixture
def one_step_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators do one step of their sliced work in each turn of the loop, as if it took as long as a slice."""
    monkeypatch.setattr(loop_budget, "LONG_SLICE_S", -1.0)
