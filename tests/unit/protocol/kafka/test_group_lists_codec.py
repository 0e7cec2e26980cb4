"""ListGroups and DescribeGroups responses by hand against kio, every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import group_lists_codec as codec
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.support.kafka_values import error_codes, int32s, names

LISTED = range(SUPPORTED[ApiKey.LIST_GROUPS].min, SUPPORTED[ApiKey.LIST_GROUPS].max + 1)
DESCRIBED = range(SUPPORTED[ApiKey.DESCRIBE_GROUPS].min, SUPPORTED[ApiKey.DESCRIBE_GROUPS].max + 1)

members = st.tuples(names, st.none() | names, names, names, st.binary(max_size=200), st.binary(max_size=20))
groups = st.tuples(error_codes, st.tuples(names, names, names, names), st.lists(members, max_size=3), int32s)


@pytest.mark.parametrize("version", LISTED)
@given(error=error_codes, listed=st.lists(st.tuples(names, names, names, names), max_size=3))
@settings(max_examples=30)
def test_list_groups(version: int, error: int, listed: list[tuple[str, str, str, str]]) -> None:
    keys = ("group_id", "protocol_type", "group_state", "group_type")
    rows = [dict(zip(keys, each, strict=True)) for each in listed]
    body = {"throttle_time": 0, "error_code": error, "groups": rows}
    found = codec.encode_list_groups(version, error, [codec.encode_listed(version, *each) for each in listed])
    assert found == messages.encode_response(ApiKey.LIST_GROUPS, version, body)


@pytest.mark.parametrize("version", DESCRIBED)
@given(described=st.lists(groups, max_size=3))
@settings(max_examples=30)
def test_describe_groups(version: int, described: list[Any]) -> None:
    keys = ("member_id", "group_instance_id", "client_id", "client_host", "member_metadata", "member_assignment")
    bodies = [
        {
            "error_code": error,
            "group_id": group_id,
            "group_state": state,
            "protocol_type": kind,
            "protocol_data": protocol,
            "members": [dict(zip(keys, each, strict=True)) for each in found],
            "authorized_operations": operations,
        }
        for error, (group_id, state, kind, protocol), found, operations in described
    ]
    rows = [
        codec.encode_described(
            version, error, texts, [codec.encode_member(version, *each) for each in found], operations
        )
        for error, texts, found, operations in described
    ]
    body = {"throttle_time": 0, "groups": bodies}
    assert codec.encode_describe_groups(version, rows) == messages.encode_response(
        ApiKey.DESCRIBE_GROUPS, version, body
    )
