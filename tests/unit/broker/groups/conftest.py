from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_cluster import GroupCluster


@pytest.fixture
def cluster(tmp_path: Path, fetchers_are_driven_by_hand: None) -> Iterator[GroupCluster]:
    """No broker runs yet."""
    cluster = GroupCluster(tmp_path, {})
    yield cluster
    cluster.close()
