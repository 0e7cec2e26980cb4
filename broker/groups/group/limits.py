"""How large groups may become: what clients make them keep in memory is counted, and bounded (CLI-2, BAD-32). Pure.

A broker's groups together have `group.memory.max.bytes`; what one member or one group may have of that is fixed here. Sizes are
those of Python's objects, roughly: a broker that takes 512 MiB for its groups takes half of that more or less than it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getsizeof

from broker.groups.group.messages import JoinRequest, Protocol

GROUP_ID_BYTES_MAX = 2**15 - 1
"""A record's key holds no longer one. Requests of flexible versions can name longer ones."""
CLIENT_ID_MAX = 255
"""Characters of a client id that are kept, and become part of the member id. Kafka keeps all."""
NAME_MAX = 249
"""Characters of a group instance id, as Kafka's clients have it, and of the names of protocols."""
PROTOCOLS_MAX = 32
"""Assignors of a member."""
MEMBER_BYTES_MAX = 4 * 1024**2
"""Of what a member says with all its assignors. One of them, with all other members', has to fit a record of the log."""
MEMBERS_MAX = 4_000
"""Of a group, where `group.max.size` is larger: a rebalance looks at all of them in one turn of the loop."""
GROUP_BYTES_MAX = 64 * 1024**2
"""Of all members of a group. What is stored of them is one record, a megabyte by default."""
PENDING_MAX = 10_000
"""Member ids of all groups that were given out and not used yet (KIP-394); of more the oldest are forgotten."""
PENDING_BYTES_MAX = 64 * 1024**2
"""Of these, with their groups."""
PENDING_OF_A_GROUP = 100
"""The same of one group; as many as it may have members, if that is more."""
PENDING_IS_OLD_S = 5.0
"""A client comes back with its id at once. After so long the id gives way when its group has no more room."""

GROUP_BYTES = 4_000
"""A group without members and offsets."""
MEMBER_BYTES = 1_000
PENDING_BYTES = 200
OFFSET_BYTES = 250


def protocols_bytes(protocols: Iterable[Protocol]) -> int:
    return sum(getsizeof(name) + getsizeof(metadata) + 200 for name, metadata in protocols)


def complaint(request: JoinRequest) -> str:
    """Why nobody may join with that, or nothing."""
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
