"""DescribeAcls, CreateAcls, DeleteAcls (APIs 29 to 31), v1 to v3: there is no authorizer, so every answer is SECURITY_DISABLED.

That is what Kafka answers without `authorizer.class.name` (AclApis), and what its tools report.
"""

from __future__ import annotations

import itertools
from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

REFUSAL = {
    "error_code": int(ErrorCode.SECURITY_DISABLED),
    "error_message": "No Authorizer is configured on the broker",
}


def acls(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(request))


def _answer(request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    answer: dict[str, Any] = {"throttle_time": 0}
    match header.api_key:
        case ApiKey.DESCRIBE_ACLS:
            answer |= {**REFUSAL, "resources": []}
        case ApiKey.CREATE_ACLS:
            answer["results"] = itertools.repeat(REFUSAL, len(body.creations))
        case _:
            answer["filter_results"] = itertools.repeat({**REFUSAL, "matching_acls": []}, len(body.filters))
    return (yield from messages.encoding(header.api_key, header.api_version, answer))
