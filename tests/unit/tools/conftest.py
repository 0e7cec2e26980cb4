from __future__ import annotations

import pytest

from tests.support.fake_admin import FakeCluster, three_brokers


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster that all commands of the test find."""
    return three_brokers().install(monkeypatch)
