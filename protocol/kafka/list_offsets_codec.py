"""ListOffsets (API 2) responses by hand, v1 to v9. Pure.

v2 throttle time, v4 leader epoch (KIP-320), v6 flexible; v7 to v9 only add meanings of the asked timestamp.
`tests/unit/protocol/kafka` compares them with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from protocol.kafka.wire import INT, array_length, string

_PARTITION_V1 = struct.Struct(">ihqq")
_PARTITION_V4 = struct.Struct(">ihqqi")
_PARTITION_V6 = struct.Struct(">ihqqix")  # and no tagged fields


class ListOffsetsPartitionResult(NamedTuple):
    """One partition's answer: `timestamp` (ms) and `offset` are -1 where nothing was found."""

    partition: int
    error: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def encode_response(
    version: int, topics: Sequence[tuple[str, Sequence[ListOffsetsPartitionResult]]], throttle_ms: int = 0
) -> bytes:
    """The response body; `topics` is (name, results)."""
    flexible = version >= 6
    parts = [INT.pack(throttle_ms)] if version >= 2 else []
    parts.append(array_length(len(topics), flexible))
    for name, results in topics:
        parts.append(string(name, flexible))
        parts.append(array_length(len(results), flexible))
        if flexible:
            parts += [_PARTITION_V6.pack(*result) for result in results]
            parts.append(b"\x00")
        elif version >= 4:
            parts += [_PARTITION_V4.pack(*result) for result in results]
        else:
            parts += [_PARTITION_V1.pack(*result[:4]) for result in results]
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)
