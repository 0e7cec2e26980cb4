"""PushTelemetry (API 72), v0: the metrics of a client (KIP-714), for the metrics page.

A push that is refused is not read. What is read is unpacked in a thread, to `telemetry.max.bytes` at most, and decoded in steps.
"""

from __future__ import annotations

import asyncio

from broker.apis.get_telemetry_subscriptions import client_of, told_end
from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import finished
from broker.storage.disk.disk_threads import UNPACKING, UNPACKING_PLACES
from protocol import otlp
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.compression import decompress


async def push_telemetry(context: ApiContext, request: Request) -> None:
    header = request.header
    body = await finished(
        context,
        request,
        messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset),
    )
    telemetry = context.telemetry
    error = ErrorCode.NONE
    try:
        instance = telemetry.check_push(
            body.client_instance_id,
            client_of(request),
            body.subscription_id,
            body.compression_type,
            len(body.metrics),
            is_terminating=body.terminating,
        )
    except KafkaError as refused:
        error = refused.code
    else:
        told_end(context, request, body.client_instance_id)
        try:
            unpacked = await _unpacked(body.metrics, body.compression_type, telemetry.bytes_max)
            numbers = await finished(context, request, otlp.numbers_in(memoryview(unpacked)))
        except KafkaError as refused:
            is_large = refused.code is ErrorCode.TELEMETRY_TOO_LARGE
            error = refused.code if is_large else ErrorCode.INVALID_RECORD
            telemetry.unreadable(instance, error)
        except ValueError:
            error = ErrorCode.INVALID_RECORD
            telemetry.unreadable(instance, error)
        else:
            telemetry.pushed(instance, len(body.metrics), numbers)
    answer = {"throttle_time": 0, "error_code": int(error)}
    request.respond_small(messages.encode_response(header.api_key, header.api_version, answer))


async def _unpacked(data: bytes, compression: int, size_max: int) -> bytes:
    """Raises KafkaError."""
    if not compression or not data:
        return data
    async with UNPACKING_PLACES.place():
        return await asyncio.get_running_loop().run_in_executor(
            UNPACKING, decompress, data, compression, size_max, ErrorCode.TELEMETRY_TOO_LARGE
        )
