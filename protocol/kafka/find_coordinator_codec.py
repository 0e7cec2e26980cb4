"""The response of FindCoordinator (API 10) for many keys, v4 to v6, by hand. Pure.

    coordinators: key, node id, host, port, error, message

`tests/unit/protocol/kafka` compares it with kio byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.wire import INT, SHORT, array_length, nullable_string, string


def encode_coordinator(key: str, error: int, message: str | None, node_id: int, host: str, port: int) -> bytes:
    return b"".join(
        (
            string(key, True),
            INT.pack(node_id),
            string(host, True),
            INT.pack(port),
            SHORT.pack(error),
            nullable_string(message, True),
            b"\x00",
        )
    )


def encode_response(coordinators: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    return b"".join((INT.pack(throttle_ms), array_length(len(coordinators), True), *coordinators, b"\x00"))
