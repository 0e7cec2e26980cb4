"""A disk in memory, and a log on it."""

from __future__ import annotations

import pytest

from broker.storage.log import Log
from tests.support.logs import open_at
from tools.sim.world.disk import MemoryDisk


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk) -> Log:
    return open_at(disk)
