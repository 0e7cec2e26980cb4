"""Which clusters have groups for `--group-protocol consumer`, by the answers of their brokers (RPL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tests.support.small_traces import fetch, produce, written
from tools.replay.run import driver
from tools.replay.run.driver import check_consumer_protocol, facts_of
from tools.replay.run.plan import ReplayError
from tools.replay.traces.schema import Trace
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView
from tools.wire.security import PLAINTEXT


class Cluster:
    """As ClusterView; it serves ApiVersions, and perhaps another API."""

    client = Client("c")

    def __init__(self, served: ApiKey, features: Mapping[str, int]) -> None:
        self._served, self._features = served, features

    async def ask_any(self, key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        messages.encode_request(key, version, 0, "c", body)
        apis = [{"api_key": int(self._served), "min_version": 0, "max_version": 1}]
        features = [
            {"name": name, "max_version_level": level, "min_version_level": 0} for name, level in self._features.items()
        ]
        answer = {"error_code": 0, "api_keys": apis, "throttle_time": 0, "supported_features": []}
        body = messages.encode_response(key, version, {**answer, "finalized_features": features})
        return messages.decode_response(key, version, memoryview(bytes(4) + body))[1]


@pytest.mark.parametrize(
    ("served", "features", "says"),
    [
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, {"metadata.version": 20, "group.version": 1}, None),
        (ApiKey.HEARTBEAT, {"group.version": 1}, "does not serve ConsumerGroupHeartbeat"),
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            {},
            "has not finalized the feature group.version",
        ),  # Kafka 3.9 with ZooKeeper
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group.version": 0}, "has not finalized the feature group.version"),
    ],
)
def test_a_cluster_without_groups_of_kip_848_is_refused(
    monkeypatch: pytest.MonkeyPatch, served: ApiKey, features: Mapping[str, int], says: str | None
) -> None:
    def ask(servers: str, security: object, topics: object, question: Callable[[ClusterView], Any]) -> Any:
        return asyncio.run(question(cast(ClusterView, Cluster(served, features))))

    monkeypatch.setattr(driver, "ask", ask)
    if says is None:
        check_consumer_protocol("", PLAINTEXT)
        return
    with pytest.raises(
        ReplayError, match=f"--group-protocol consumer: the cluster has no groups of KIP-848: it {says}"
    ):
        check_consumer_protocol("", PLAINTEXT)


def test_a_trace_knows_whether_its_clients_are_in_groups(tmp_path: Path) -> None:
    rows = [produce(0, 0), fetch(1, 1, group=None)]
    assert not facts_of(Trace(written(tmp_path / "without", rows))).has_groups
    assert facts_of(Trace(written(tmp_path / "with", [*rows, fetch(2, 2, group="g")]))).has_groups
