"""UpdateFeatures (API 57), v0 and v1: only on the controller. Every feature that is named is refused with INVALID_REQUEST.

A ZooKeeper cluster has no features (KIP-584): as Kafka in that mode, this broker supports none, and none is finalized. A feature that is
named twice is answered once.
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages

NOT_SUPPORTED = "Could not apply finalized feature update because the provided feature is not supported."
NOT_FINALIZED = "Can not delete non-existing finalized feature."
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
    answer = {
        "throttle_time": 0,
        "error_code": int(ErrorCode.NONE if is_active else ErrorCode.NOT_CONTROLLER),
        "error_message": None if is_active else "send the request to the controller",
        "results": (
            {
                "feature": feature,
                "error_code": int(ErrorCode.INVALID_REQUEST),
                "error_message": NOT_SUPPORTED if level >= 1 else NOT_FINALIZED,
            }
            for feature, level in levels.items()
        ),
    }
    return (yield from messages.encoding(header.api_key, header.api_version, answer))
