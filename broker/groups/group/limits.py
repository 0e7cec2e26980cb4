"""Limits of the memory that clients can make groups use (CLI-2, BAD-32). Pure.

`group.memory.max.bytes` limits all groups of a broker together. The limits of one member and one group are fixed here. Sizes are
estimates of Python's objects: groups that count as 512 MiB take 256 to 768 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getsizeof

from broker.groups.group.messages import JoinRequest, Protocol

GROUP_ID_BYTES_MAX = 2**15 - 1
"""A record's key cannot hold a longer group id. Requests of flexible versions can contain longer ids."""
KEY_TEXT_BYTES_MAX = 2**15 - 1
"""The same of a member id or a regular expression, in groups of the new kind."""
CLIENT_ID_MAX = 255
"""The first characters of a client id are kept, and become part of the member id. Kafka keeps the whole client id."""
NAME_MAX = 249
"""Maximum characters of a group instance id (as in Kafka's clients), of a protocol type, and of a protocol's name."""
PROTOCOLS_MAX = 32
"""Maximum number of assignors of a member."""
MEMBER_BYTES_MAX = 4 * 1024**2
"""A member's metadata for all its assignors. One record of the log must hold the metadata of all members for one assignor."""
MEMBERS_MAX = 4_000
"""Limit of members if `group.max.size` is larger, because a rebalance handles all in one turn of the loop. Static members that are
away may make it twice as many."""
GROUP_BYTES_MAX = 64 * 1024**2
"""Memory of all members of a group. Their record in the log has at most a megabyte by default."""
PENDING_MAX = 10_000
"""Limit of unused member ids of all groups (KIP-394). Above it the oldest are dropped."""
PENDING_BYTES_MAX = 64 * 1024**2
"""Limit of the memory of all unused member ids and their groups."""
PENDING_OF_A_GROUP = 100
"""Limit of unused member ids of one group. If the group may have more members than this, their number is the limit."""
PENDING_IS_OLD_S = 5.0
"""A client normally joins with its id at once. An id that is older is dropped when its group has no room left."""

GROUP_BYTES = 4_000
"""Approximate memory of a group without members and offsets."""
MEMBER_BYTES = 1_000
PENDING_BYTES = 200
OFFSET_BYTES = 250


def protocols_bytes(protocols: Iterable[Protocol]) -> int:
    return sum(getsizeof(name) + getsizeof(metadata) + 200 for name, metadata in protocols)


def complaint(request: JoinRequest) -> str:
    """Why the request is refused; "" if it is not."""
    if request.instance_id is not None and len(request.instance_id) > NAME_MAX:
        return f"a group instance id of {len(request.instance_id)} characters"
    if len(request.protocol_type) > NAME_MAX:
        return f"a protocol type of {len(request.protocol_type)} characters"
    return _complaint_of_protocols(request.protocols)


def _complaint_of_protocols(protocols: Sequence[Protocol]) -> str:
    if len(protocols) > PROTOCOLS_MAX:
        return f"{len(protocols)} protocols"
    if any(len(protocol.name) > NAME_MAX for protocol in protocols):
        return f"a protocol's name of more than {NAME_MAX} characters"
    size = sum(len(protocol.metadata) for protocol in protocols)
    return f"metadata of {size} bytes" if size > MEMBER_BYTES_MAX else ""
