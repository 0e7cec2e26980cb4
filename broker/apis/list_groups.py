"""ListGroups (API 16), v0 to v5: the groups whose coordinator is this broker (CLI-2).

v4 only those in certain states, and the state of each; v5 likewise for types, which is `classic` for every group here. While
groups are being loaded the answer says so, beside those that are there already.
"""

from __future__ import annotations

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey


def list_groups(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.LIST_GROUPS, version, request.frame, header.body_offset)
    states = frozenset(getattr(body, "states_filter", None) or ())
    types = frozenset(getattr(body, "types_filter", None) or ())
    error, groups = context.groups.list_groups(states, types)
    answer = {
        "throttle_time": 0,
        "error_code": int(error),
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in groups
        ],
    }
    request.respond_small(messages.encode_response(ApiKey.LIST_GROUPS, version, answer))
