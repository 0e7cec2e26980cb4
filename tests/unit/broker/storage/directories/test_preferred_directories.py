"""Where replicas are to be made that are not here: anybody may say so, of any name."""

from __future__ import annotations

from typing import Any

import pytest

from broker.storage.directories import future_logs
from broker.storage.directories.future_logs import FutureLogs
from protocol.types import TopicPartition


def test_the_newest_wishes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_logs, "PREFERRED_MAX", 3)
    no_disk: Any = None
    futures = FutureLogs(no_disk)
    for number in (0, 1, 2, 0, 3):
        futures.prefer(TopicPartition("t", number), f"/disk-{number}")
    assert [tp.partition for tp in futures.preferred] == [2, 0, 3]
