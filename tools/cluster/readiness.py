"""Whether brokers serve: each answers Metadata, knows a controller and lists all the others."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

METADATA_VERSION = 9
CLIENT_ID = "ottla-cluster"
ANSWER_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The cluster according to one broker; `controller_id` is -1 if it knows none."""

    broker_ids: frozenset[int]
    controller_id: int


def broker_view(address: tuple[str, int], timeout_s: float) -> BrokerView | None:
    """The answer of the broker at `address`; None without a valid answer."""
    # Imported late: loading Kafka's schemas takes a while, in which brokers that were just started can continue.
    from protocol.kafka.api_keys import ApiKey

    body = {"topics": [], "allow_auto_topic_creation": False}
    answer = ask_broker(address, timeout_s, ApiKey.METADATA, METADATA_VERSION, body)
    if answer is None:
        return None
    return BrokerView(frozenset(broker.node_id for broker in answer.brokers), answer.controller_id)


def ask_broker(
    address: tuple[str, int], timeout_s: float, api_key: int, version: int, body: Mapping[str, Any]
) -> Any | None:
    """This broker's answer (kio's entity) over a separate connection; None without a valid answer."""
    from protocol.kafka.framing import MalformedRequest
    from protocol.kafka.messages import decode_response, encode_request

    request = encode_request(api_key, version, 1, CLIENT_ID, body)
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(struct.pack("!i", len(request)) + request)
            (size,) = struct.unpack("!i", _receive(connection, 4))
            if not 4 <= size <= ANSWER_BYTES_MAX:
                return None
            return decode_response(api_key, version, _receive(connection, size))[1]
    except (OSError, MalformedRequest):
        return None


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


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the broker closed the connection")
        data += chunk
    return bytes(data)
