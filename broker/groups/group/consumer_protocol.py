"""The start of a consumer's metadata (`ConsumerProtocolSubscription`): the topics it reads. Pure.

    version INT16 | topics: count INT32, then each: length INT16, UTF-8 | user data ... (and more in later versions)

Later versions only append fields, so the topics are read the same way in every version. The rest is opaque.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"
LISTS_REMEMBERED = 16
TOPICS_READ_MAX = 50_000
"""Topic names that are read per group, which takes 20 ms. If a group has more, its topics are not known. A list that many members
have in common is read once, if it is among the first LISTS_REMEMBERED lists."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of one member; None if the subscription cannot be read."""
    return topics_of_all((subscription,))


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of a whole group; None if one subscription cannot be read."""
    union: set[str] = set()
    left = TOPICS_READ_MAX
    read: tuple[bytes, ...] = ()
    for subscription in subscriptions:
        if subscription.startswith(read):
            continue  # The prefix contains the number of topics, so this subscription has the same topics.
        try:
            count, end = _read(subscription, union, left)
        except (struct.error, UnicodeDecodeError, ValueError):
            return None
        left -= count
        if len(read) < LISTS_REMEMBERED:
            read = (*read, subscription[:end])
    return frozenset(union)


def _read(subscription: bytes, topics: set[str], count_max: int) -> tuple[int, int]:
    """Adds the topics; returns their number, and where they end. Raises struct.error, ValueError."""
    version, count = _VERSION_AND_COUNT.unpack_from(subscription)
    if version < 0 or not 0 <= count <= count_max:
        raise ValueError(f"version {version}, {count} topics")
    position = _VERSION_AND_COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(subscription):
            raise ValueError(f"a topic of {length} bytes")
        topics.add(subscription[position : position + length].decode())
        position += length
    return count, position
