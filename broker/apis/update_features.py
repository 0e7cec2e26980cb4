"""UpdateFeatures (API 57), v0 to v2: only on the controller. It changes nothing: which features the cluster has follows from its level.

At level 3.9, a cluster has no features (KIP-584): as in Kafka's ZooKeeper mode, every feature that is named is refused with
INVALID_REQUEST. At level 4, an update to the version that is finalized succeeds, and any other one is refused as a whole, with
INVALID_UPDATE_VERSION, as FeatureControlManager does. A feature that is named twice is answered once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from protocol.kafka.features import FEATURES

NOT_SUPPORTED = "Could not apply finalized feature update because the provided feature is not supported."
NOT_FINALIZED = "Can not delete non-existing finalized feature."
ALL_REFUSED = "The update failed for all features since the following feature had an error: "
"""Kafka's words, which its tools print."""


def update_features(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    is_active = context.controller.is_active
    if not rights.on_cluster(context, request, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused: dict[str, Any] = {"throttle_time": 0, "error_code": int(error), "error_message": None, "results": []}
        return (yield from messages.encoding(header.api_key, header.api_version, refused))
    levels = {row.feature: row.max_version_level for row in body.feature_updates} if is_active else {}
    yield
    error, message = ErrorCode.NONE, None
    results: dict[str, str | None] = {}
    if not is_active:
        error, message = ErrorCode.NOT_CONTROLLER, "send the request to the controller"
    elif context.api_level is ApiLevel.KAFKA_3_9:
        results = {feature: NOT_SUPPORTED if level >= 1 else NOT_FINALIZED for feature, level in levels.items()}
    elif (reason := _refusal(levels, context.api_level)) is not None:
        error, message = ErrorCode.INVALID_UPDATE_VERSION, ALL_REFUSED + reason
    else:
        results = dict.fromkeys(levels)
    answer = {
        "throttle_time": 0,
        "error_code": int(error),
        "error_message": message,
        "results": (
            {
                "feature": feature,
                "error_code": int(ErrorCode.NONE if reason is None else ErrorCode.INVALID_REQUEST),
                "error_message": reason,
            }
            for feature, reason in results.items()
        ),
    }
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _refusal(levels: Mapping[str, int], api_level: ApiLevel) -> str | None:
    """Why one of these updates, feature -> version, is impossible; None: each has its version already."""
    for name, level in levels.items():
        feature = FEATURES[api_level].get(name)
        if level < 0:
            reason = "A feature version cannot be less than 0."
        elif feature is None and level == 0:
            reason = f"Feature {name} not found."
        elif feature is None:
            reason = "The cluster does not support this feature."
        elif not feature.supported.min <= level <= feature.supported.max:
            reason = f"The cluster only supports versions {feature.supported.min}-{feature.supported.max}"
        elif level != feature.finalized:
            reason = f"It is {feature.finalized}, and follows from broker.api.level."
        else:
            continue
        return f"Invalid update version {level} for feature {name}. {reason}"
    return None
