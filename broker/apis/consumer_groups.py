"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (APIs 68 and 69), v0: the group protocol of KIP-848 is not there.

Both are answered with UNSUPPORTED_VERSION, as by Kafka 3.9's coordinator in ZooKeeper mode: clients report it, and admin clients
describe the group by DescribeGroups instead.
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

REFUSAL = {
    "error_code": int(ErrorCode.UNSUPPORTED_VERSION),
    "error_message": "the consumer group protocol of KIP-848 is not supported: set group.protocol=classic",
}
NOT_ASKED = -(2**31)


def consumer_groups(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(request))


def _answer(request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    answer: dict[str, Any] = {"throttle_time": 0}
    if header.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        answer |= {**REFUSAL, "member_id": None, "member_epoch": 0, "heartbeat_interval": 0, "assignment": None}
    else:
        answer["groups"] = map(_row, body.group_ids)
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _row(group_id: str) -> dict[str, Any]:
    return {
        **REFUSAL,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": NOT_ASKED,
    }
