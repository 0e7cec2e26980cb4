"""ListGroups (API 16), v0 to v5: the groups whose coordinator is this broker (CLI-2).

v4 filters by state and returns each group's state; v5 does the same for types, which are always `classic` here. While groups are being
loaded, the answer has COORDINATOR_LOAD_IN_PROGRESS and the groups loaded so far.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.kafka import group_lists_codec, messages
from protocol.kafka.api_keys import ApiKey

GROUPS_IN_A_STEP = 200


def list_groups(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.LIST_GROUPS, version, request.frame, header.body_offset)
    states = frozenset(getattr(body, "states_filter", None) or ())
    types = frozenset(getattr(body, "types_filter", None) or ())
    error, groups = context.groups.list_groups(states, types)
    rows: list[bytes] = []
    may_all = rights.on_cluster(context, request, Operation.DESCRIBE, is_quiet=True)
    for number, group in enumerate(groups, 1):
        if group is not None and (
            may_all or rights.on_group(context, request, Operation.DESCRIBE, group.group_id, is_quiet=True)
        ):
            rows.append(group_lists_codec.encode_listed(version, *group))
        if number % GROUPS_IN_A_STEP == 0:
            yield
    return group_lists_codec.encode_list_groups(version, error, rows)
