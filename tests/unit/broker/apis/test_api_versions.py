"""ApiVersions (API 18): what it says of the other APIs, and of features."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import Any

import pytest

from broker.apis import api_versions
from broker.apis.api_versions import response_body
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ANSWERED, SERVED, SUPPORTED, ApiKey, ApiLevel, VersionRange
from protocol.kafka.features import FEATURES, Feature

CORRELATION_ID = struct.pack(">i", 1)


def answer(level: ApiLevel, version: int, epoch: int = 0) -> Any:
    body = response_body(level, version, ErrorCode.NONE, epoch)
    return messages.decode_response(ApiKey.API_VERSIONS, version, CORRELATION_ID + body)[1]


def advertised(level: ApiLevel) -> dict[int, tuple[int, int]]:
    return {int(row.api_key): (row.min_version, row.max_version) for row in answer(level, 0).api_keys}


@pytest.mark.parametrize("level", ApiLevel)
def test_what_is_served_is_advertised_and_the_reverse(level: ApiLevel) -> None:
    served = {int(key): tuple(versions) for key, versions in SERVED[level].items()}
    found = advertised(level)
    del served[ApiKey.PRODUCE], found[ApiKey.PRODUCE]
    assert found == served


@pytest.mark.parametrize("level", ApiLevel)
def test_produce_is_advertised_from_v0(level: ApiLevel) -> None:
    """librdkafka 2.0.2 compresses by gzip, snappy or lz4 only then: its issue 4956."""
    assert advertised(level)[ApiKey.PRODUCE] == (0, SERVED[level][ApiKey.PRODUCE].max)


def test_what_can_be_served_is_served_at_some_level() -> None:
    """WriteTxnMarkers v2 is only for brokers, which are answered at every level."""
    for key, versions in SUPPORTED.items():
        ranges = [served[key] for served in (*SERVED.values(), *ANSWERED.values()) if key in served]
        ranges = [found._replace(min=max(found.min, versions.min)) for found in ranges]
        assert set(range(versions.min, versions.max + 1)) == {
            version for found in ranges for version in range(found.min, found.max + 1)
        }


@pytest.mark.parametrize("level", ApiLevel)
@pytest.mark.parametrize("version", [3, 4])
def test_the_features_are_those_of_the_level(level: ApiLevel, version: int) -> None:
    found = answer(level, version, 7)
    assert {row.name: row.max_version_level for row in found.finalized_features} == {
        name: feature.finalized for name, feature in FEATURES[level].items()
    }
    assert found.finalized_features_epoch == 7


@pytest.mark.parametrize(("version", "supported"), [(3, {"b": (1, 3)}), (4, {"a": (0, 2), "b": (1, 3)})])
def test_a_feature_that_may_be_off_is_supported_from_v4_on(
    monkeypatch: pytest.MonkeyPatch, version: int, supported: dict[str, tuple[int, int]]
) -> None:
    """KAFKA-17011"""
    features = MappingProxyType({"a": Feature(VersionRange(0, 2), 1), "b": Feature(VersionRange(1, 3), 2)})
    monkeypatch.setattr(api_versions, "FEATURES", {ApiLevel.KAFKA_4: features})
    response_body.cache_clear()
    try:
        found = answer(ApiLevel.KAFKA_4, version)
    finally:
        response_body.cache_clear()
    assert {row.name: (row.min_version, row.max_version) for row in found.supported_features} == supported
    assert [(row.name, row.min_version_level, row.max_version_level) for row in found.finalized_features] == [
        ("a", 1, 1),
        ("b", 2, 2),
    ]


def test_only_level_4_has_a_cluster_with_features() -> None:
    assert not FEATURES[ApiLevel.KAFKA_3_9]
