from __future__ import annotations

import pytest

from tests.support.api_world import World
from tests.support.cluster_fixtures import cluster

__all__ = ["cluster", "world"]


@pytest.fixture
def world() -> World:
    return World()
