"""An array of topic ids, each with its partitions, as ConsumerGroupHeartbeat and the records of consumer groups have it. Pure.

A member may have thousands of topics, most of them with a single partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from protocol.kafka.framing import unsigned_varint

_INT: Final = struct.Struct(">i")


def by_topic(partitions: Iterable[tuple[bytes, int]]) -> dict[bytes, list[int]]:
    """Topic id -> partitions, both in order."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in partitions:
        if topic_id in found:
            found[topic_id].append(partition)
        else:
            found[topic_id] = [partition]
    return {topic_id: sorted(found[topic_id]) for topic_id in sorted(found)}


@lru_cache(maxsize=16)
def encoded_set(partitions: frozenset[tuple[bytes, int]]) -> bytes:
    """A large set is the target of a member, then its assignment, and then in the answer."""
    return encoded(by_topic(partitions))


def encoded(topics: Mapping[bytes, Sequence[int]]) -> bytes:
    """`topics`: topic id -> partitions."""
    parts = [unsigned_varint(len(topics) + 1)]
    for topic_id, numbers in topics.items():
        if len(numbers) == 1:
            parts.append(b"%b\x02%b\x00" % (topic_id, _INT.pack(numbers[0])))
        else:
            count = len(numbers)
            parts.append(b"%b%b%b\x00" % (topic_id, unsigned_varint(count + 1), struct.pack(f">{count}i", *numbers)))
    return b"".join(parts)
