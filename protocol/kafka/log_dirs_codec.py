"""The response of DescribeLogDirs (API 35), v1 to v4, hand-written, replica by replica: there may be ten thousand replicas. Pure.

    throttle time, [v3: error],
    directories: error, path, topics: name, replicas: partition, size, offset lag, is future; [v4: total, usable bytes]

v2 and later are flexible. `tests/unit/protocol/kafka` compares the response with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from protocol.kafka.wire import INT, SHORT, array_length, string

FLEXIBLE_SINCE = 2
ERROR_SINCE = 3
SPACE_SINCE = 4

_REPLICA_V1 = struct.Struct(">iqq?")
_REPLICA_V2 = struct.Struct(">iqq?x")  # and no tagged fields
_SPACE = struct.Struct(">qq")


def encode_replica(version: int, partition: int, size: int, offset_lag: int, *, is_future: bool) -> bytes:
    layout = _REPLICA_V2 if version >= FLEXIBLE_SINCE else _REPLICA_V1
    return layout.pack(partition, size, offset_lag, is_future)


def encode_directory(
    version: int, error: int, path: str, topics: Mapping[str, Sequence[bytes]], space: tuple[int, int]
) -> bytes:
    """`topics` maps each topic to its encoded replicas; `space` is (total bytes, usable bytes)."""
    flexible = version >= FLEXIBLE_SINCE
    end = b"\x00" if flexible else b""
    parts = [SHORT.pack(error), string(path, flexible), array_length(len(topics), flexible)]
    for name, replicas in topics.items():
        parts += [string(name, flexible), array_length(len(replicas), flexible), *replicas, end]
    if version >= SPACE_SINCE:
        parts.append(_SPACE.pack(*space))
    return b"".join((*parts, end))


def encode_response(version: int, error: int, directories: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    flexible = version >= FLEXIBLE_SINCE
    head = INT.pack(throttle_ms) + (SHORT.pack(error) if version >= ERROR_SINCE else b"")
    return b"".join((head, array_length(len(directories), flexible), *directories, b"\x00" if flexible else b""))
