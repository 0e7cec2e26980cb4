"""GetTelemetrySubscriptions (API 71), v0: which metrics the client shall push, how often, and under which id (KIP-714).

The subscriptions are the settings of resources of the type client metrics. A client that nobody wants metrics of gets an empty list.
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.telemetry.client_telemetry import ACCEPTED_COMPRESSION, Client
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages

NOTHING: dict[str, Any] = {
    "client_instance_id": None,
    "subscription_id": 0,
    "accepted_compression_types": (),
    "push_interval": 0,
    "telemetry_max_bytes": 0,
    "delta_temporality": False,
    "requested_metrics": (),
}


def get_telemetry_subscriptions(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(header.api_key, header.api_version, request.frame, header.body_offset)
    try:
        found = context.telemetry.subscribe(body.client_instance_id, client_of(request))
    except KafkaError as refused:
        answer = {**NOTHING, "throttle_time": 0, "error_code": int(refused.code)}
    else:
        told_end(context, request, found.instance_id)
        answer = {
            "throttle_time": 0,
            "error_code": int(ErrorCode.NONE),
            "client_instance_id": found.instance_id,
            "subscription_id": found.subscription_id,
            "accepted_compression_types": ACCEPTED_COMPRESSION,
            "push_interval": found.interval_ms,
            "telemetry_max_bytes": context.telemetry.bytes_max,
            "delta_temporality": True,
            "requested_metrics": found.metrics,
        }
    request.respond_small(messages.encode_response(header.api_key, header.api_version, answer))


def client_of(request: Request) -> Client:
    """What patterns of subscriptions look at."""
    connection = request.connection
    return Client(
        request.header.client_id or "", *connection.software, connection.remote_address, str(connection.remote_port)
    )


def told_end(context: ApiContext, request: Request, instance_id: Any) -> None:
    """The client instance is forgotten when the connection ends."""
    connection = request.connection
    if connection.is_open and context.telemetry.bind(instance_id, connection):
        connection.when_ended(lambda: context.telemetry.gone(connection))
