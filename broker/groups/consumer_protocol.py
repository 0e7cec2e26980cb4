"""The beginning of what consumers tell their leader (`ConsumerProtocolSubscription`), as far as a coordinator reads it. Pure.

    version INT16 | topics: count INT32, then each: length INT16, UTF-8 | user data ... (and more in later versions)

Later versions only append, so that the topics of every version are read in the same way. It is opaque otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"
TOPICS_MAX = 50_000
"""In the different subscriptions of a group: to read more would hold the loop. Of a group with more the topics are not known."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """None if it does not have that form: the group's topics are then not known."""
    topics = set()
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(subscription)
        if version < 0 or not 0 <= count <= TOPICS_MAX:
            return None
        position = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(subscription):
                return None
            topics.add(subscription[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Of a whole group; None if one of them is not known."""
    union: set[str] = set()
    read = 0
    for subscription in dict.fromkeys(subscriptions):
        topics = subscribed_topics(subscription)
        if topics is None:
            return None
        union |= topics
        read += len(topics)
        if read > TOPICS_MAX:
            return None
    return frozenset(union)
