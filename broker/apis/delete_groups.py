"""DeleteGroups (API 42), v0 to v2: groups without members are forgotten, with their offsets (CLI-2).

NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND for each that is not deleted; one that is named twice is answered once.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey


def delete_groups(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.DELETE_GROUPS, header.api_version, request.frame, header.body_offset)
    group_ids = list(dict.fromkeys(body.groups_names))
    context.groups.delete_groups(group_ids, lambda errors: _respond(request, errors))


def _respond(request: Request, errors: Mapping[str, ErrorCode]) -> None:
    rows = [{"group_id": group_id, "error_code": int(error)} for group_id, error in errors.items()]
    body = {"throttle_time": 0, "results": rows}
    request.respond_small(messages.encode_response(ApiKey.DELETE_GROUPS, request.header.api_version, body))
