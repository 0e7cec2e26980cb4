from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.support.memory_cluster import MemoryCluster, running


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[MemoryCluster]:
    """Brokers 1, 2 and 3; broker 1 is the controller. After the test all must be sound (`MemoryCluster.check`)."""
    return running()
