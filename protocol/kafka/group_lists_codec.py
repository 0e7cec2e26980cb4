"""The responses of ListGroups (API 16, v0 to v5) and DescribeGroups (API 15, v0 to v5), hand-written, row by row. Pure.

There may be a hundred thousand groups or members, so callers encode the rows in steps. `tests/unit/protocol/kafka` compares the
responses with kio byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.framing import unsigned_varint
from protocol.kafka.wire import INT, SHORT, array_length, nullable_string, string

LISTED_THROTTLE_SINCE = 1
LISTED_FLEXIBLE_SINCE = 3
LISTED_STATE_SINCE = 4
LISTED_TYPE_SINCE = 5

DESCRIBED_THROTTLE_SINCE = 1
DESCRIBED_OPERATIONS_SINCE = 3
DESCRIBED_INSTANCE_SINCE = 4
DESCRIBED_FLEXIBLE_SINCE = 5
DESCRIBED_MESSAGE_SINCE = 6


def encode_listed(version: int, group_id: str, protocol_type: str, state: str, group_type: str) -> bytes:
    """A row of ListGroups."""
    flexible = version >= LISTED_FLEXIBLE_SINCE
    row = string(group_id, flexible) + string(protocol_type, flexible)
    if version >= LISTED_STATE_SINCE:
        row += string(state, True)
    if version >= LISTED_TYPE_SINCE:
        row += string(group_type, True)
    return row + b"\x00" if flexible else row


def encode_list_groups(version: int, error: int, rows: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    flexible = version >= LISTED_FLEXIBLE_SINCE
    throttle = INT.pack(throttle_ms) if version >= LISTED_THROTTLE_SINCE else b""
    head = throttle + SHORT.pack(error) + array_length(len(rows), flexible)
    return b"".join((head, *rows, b"\x00" if flexible else b""))


def encode_member(
    version: int,
    member_id: str,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    metadata: bytes,
    assignment: bytes,
) -> bytes:
    """A member in a row of DescribeGroups."""
    flexible = version >= DESCRIBED_FLEXIBLE_SINCE
    return b"".join(
        (
            string(member_id, flexible),
            nullable_string(instance_id, flexible) if version >= DESCRIBED_INSTANCE_SINCE else b"",
            string(client_id, flexible),
            string(client_host, flexible),
            _sized(metadata, flexible),
            _sized(assignment, flexible),
            b"\x00" if flexible else b"",
        )
    )


def encode_described(
    version: int,
    error: int,
    names: tuple[str, str, str, str],
    members: Sequence[bytes],
    operations: int,
    message: str | None = None,
) -> bytes:
    """A row of DescribeGroups; `names` are the group's id, state, protocol type and protocol. `message`: of the error, since v6."""
    flexible = version >= DESCRIBED_FLEXIBLE_SINCE
    return b"".join(
        (
            SHORT.pack(error),
            nullable_string(message, True) if version >= DESCRIBED_MESSAGE_SINCE else b"",
            *(string(name, flexible) for name in names),
            array_length(len(members), flexible),
            *members,
            INT.pack(operations) if version >= DESCRIBED_OPERATIONS_SINCE else b"",
            b"\x00" if flexible else b"",
        )
    )


def encode_describe_groups(version: int, rows: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    flexible = version >= DESCRIBED_FLEXIBLE_SINCE
    throttle = INT.pack(throttle_ms) if version >= DESCRIBED_THROTTLE_SINCE else b""
    return b"".join((throttle, array_length(len(rows), flexible), *rows, b"\x00" if flexible else b""))


def _sized(data: bytes, flexible: bool) -> bytes:
    return (unsigned_varint(len(data) + 1) if flexible else INT.pack(len(data))) + data
