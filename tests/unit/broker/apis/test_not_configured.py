"""APIs of what is not configured or not there answer as a Kafka without it does (CLI-5, FMT-1)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import update_features
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey, ApiLevel, VersionRange
from protocol.kafka.features import Feature
from protocol.kafka.framing import parse_request_header
from tests.support.api_world import World
from tools.inspect.conformance.requests import complete, requests
from tools.inspect.conformance.scene import Scene

SCENE = Scene("conform-unit", 1)
DISABLED = ErrorCode.SECURITY_DISABLED
NO_TOKENS = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
CASES: dict[ApiKey, tuple[ErrorCode, str]] = {
    ApiKey.SASL_HANDSHAKE: (ErrorCode.ILLEGAL_SASL_STATE, ""),
    ApiKey.SASL_AUTHENTICATE: (ErrorCode.ILLEGAL_SASL_STATE, ""),
    ApiKey.DESCRIBE_ACLS: (DISABLED, ""),
    ApiKey.CREATE_ACLS: (DISABLED, "results"),
    ApiKey.DELETE_ACLS: (DISABLED, "filter_results"),
    ApiKey.CREATE_DELEGATION_TOKEN: (NO_TOKENS, ""),
    ApiKey.RENEW_DELEGATION_TOKEN: (NO_TOKENS, ""),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (NO_TOKENS, ""),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (NO_TOKENS, ""),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (ErrorCode.UNSUPPORTED_VERSION, ""),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (ErrorCode.UNSUPPORTED_VERSION, "groups"),
}
"""API -> the error, and the array whose rows have it; "" is the answer itself."""


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key in CASES for version in range(SUPPORTED[key].min, SUPPORTED[key].max + 1)],
)
async def test_each_version_has_the_error_of_kafka(api_key: ApiKey, version: int) -> None:
    body = complete(messages.request_schema(api_key, version), requests()[api_key].body(SCENE))
    frame = messages.encode_request(api_key, version, 1, "test", body)
    connection, waiting = World().begin_frame(frame)
    if waiting is not None:
        await waiting
    assert parse_request_header(frame).correlation_id == int.from_bytes(connection.sent[4:8], "big")
    error, array = CASES[api_key]
    answer = World.answer(connection, api_key, version)
    rows: list[Any] = list(getattr(answer, array)) if array else [answer]
    assert [ErrorCode(row.error_code) for row in rows] == [error]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("is_active", [True, False])
async def test_no_feature_can_be_updated(version: int, is_active: bool) -> None:
    """Of a cluster of level 3.9: as a Kafka 3.9.1 in ZooKeeper mode answered, which has no features (KIP-584)."""
    rows = [
        {"feature": feature, "max_version_level": level, "allow_downgrade": level == 0, "upgrade_type": 1}
        for feature, level in (("metadata.version", 20), ("group.version", 0), ("metadata.version", 21))
    ]
    request = {"timeout": 1000, "feature_updates": rows, "validate_only": False}
    world = World()
    world.controller.is_active = is_active
    connection, _ = world.begin_frame(messages.encode_request(ApiKey.UPDATE_FEATURES, version, 1, "test", request))
    answer = World.answer(connection, ApiKey.UPDATE_FEATURES, version)
    if not is_active:
        assert (ErrorCode(answer.error_code), answer.results) == (ErrorCode.NOT_CONTROLLER, ())
        return
    found = [(row.feature, ErrorCode(row.error_code), row.error_message) for row in answer.results]
    not_supported = "Could not apply finalized feature update because the provided feature is not supported."
    assert answer.error_code == ErrorCode.NONE
    assert found == [
        ("metadata.version", ErrorCode.INVALID_REQUEST, not_supported),
        ("group.version", ErrorCode.INVALID_REQUEST, "Can not delete non-existing finalized feature."),
    ]


@pytest.mark.parametrize(
    ("updates", "refused"),
    [
        ([("a.version", 1)], None),
        ([("a.version", 0)], "version 0 for feature a.version. It is 1, and follows from broker.api.level."),
        ([("a.version", 3)], "version 3 for feature a.version. The cluster only supports versions 0-2"),
        ([("a.version", -1)], "version -1 for feature a.version. A feature version cannot be less than 0."),
        (
            [("a.version", 1), ("b.version", 1)],
            "version 1 for feature b.version. The cluster does not support this feature.",
        ),
        ([("b.version", 0)], "version 0 for feature b.version. Feature b.version not found."),
        ([], None),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_features_stay_as_the_level_has_them(
    monkeypatch: pytest.MonkeyPatch, updates: list[tuple[str, int]], refused: str | None, version: int
) -> None:
    """As a Kafka 4.1.1: the whole request has one error (KIP-584)."""
    features = {ApiLevel.KAFKA_4: {"a.version": Feature(VersionRange(0, 2), 1)}}
    monkeypatch.setattr(update_features, "FEATURES", features)
    rows = [{"feature": feature, "max_version_level": level, "upgrade_type": 1} for feature, level in updates]
    request = {"timeout": 1000, "feature_updates": rows, "validate_only": False}
    world = World()
    world.context.api_level = ApiLevel.KAFKA_4
    connection, _ = world.begin_frame(messages.encode_request(ApiKey.UPDATE_FEATURES, version, 1, "test", request))
    answer = World.answer(connection, ApiKey.UPDATE_FEATURES, version)
    if refused is not None:
        assert ErrorCode(answer.error_code) is ErrorCode.INVALID_UPDATE_VERSION
        assert answer.error_message.endswith(f"had an error: Invalid update {refused}")
        return
    assert ErrorCode(answer.error_code) is ErrorCode.NONE
    if version == 1:
        found = [(row.feature, ErrorCode(row.error_code)) for row in answer.results]
        assert found == [(feature, ErrorCode.NONE) for feature, _ in updates]
