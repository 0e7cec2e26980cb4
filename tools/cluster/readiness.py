"""Whether brokers serve: each answers Metadata, knows a controller and lists all the others.

Asked without Kafka's schemas and without an event loop, which `ottla cluster start` needs for nothing else.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, request_header
from protocol.kafka.wire import INT, array_length, read_array_length, read_nullable_string

METADATA_VERSION = 1
CLIENT_ID = "ottla-cluster"
BROKER_BYTES_MIN = 12
ANSWER_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The cluster according to one broker; `controller_id` is -1 if it knows none."""

    broker_ids: frozenset[int]
    controller_id: int


def broker_view(address: tuple[str, int], timeout_s: float) -> BrokerView | None:
    """The answer of the broker at `address`; None without a valid answer."""
    header = request_header(ApiKey.METADATA, METADATA_VERSION, 0, CLIENT_ID, flexible=False)
    no_topics = array_length(0, flexible=False)
    request = header + no_topics
    try:
        with socket.create_connection(address, timeout_s) as connection, connection.makefile("rb") as answers:
            if connection.getsockname() == connection.getpeername():
                return None  # nothing listens there (`protocol/self_connection.py`)
            connection.sendall(INT.pack(len(request)) + request)
            (size,) = INT.unpack(answers.read(INT.size))
            return _view(answers.read(max(0, min(size, ANSWER_BYTES_MAX))))
    except (OSError, struct.error, MalformedRequest):
        return None


def _view(frame: bytes) -> BrokerView:
    """Reads an answer up to the controller. Raises MalformedRequest, struct.error."""
    broker_ids = set()
    count, at = read_array_length(frame, INT.size, False, BROKER_BYTES_MIN)  # after the correlation id
    for _ in range(count):
        broker_ids.add(INT.unpack_from(frame, at)[0])
        _host, at = read_nullable_string(frame, at + INT.size, False)
        _rack, at = read_nullable_string(frame, at + INT.size, False)  # after the port
    return BrokerView(frozenset(broker_ids), INT.unpack_from(frame, at)[0])


def not_ready(addresses: Mapping[int, tuple[str, int]], expected: Collection[int], timeout_s: float) -> dict[int, str]:
    """Broker id -> what is missing, for those of `addresses` that are not ready. A ready broker lists all `expected` brokers."""
    reasons: dict[int, str] = {}
    for broker_id, address in addresses.items():
        view = broker_view(address, timeout_s)
        if view is None:
            reasons[broker_id] = "does not answer"
        elif view.controller_id < 0:
            reasons[broker_id] = "knows no controller"
        elif not view.broker_ids >= set(expected):
            missing = ", ".join(map(str, sorted(set(expected) - view.broker_ids)))
            reasons[broker_id] = f"does not know broker {missing}"
    return reasons
