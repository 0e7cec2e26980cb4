"""Frames of the control plane (FMT-4). Pure.

int32 length | int32 correlation id | msgpack body            (both directions)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgpack

from protocol.rpc import messages
from protocol.rpc.messages import ControlRequest, ControlResponse
from protocol.rpc.packed_states import pack_body

_LENGTH = struct.Struct(">i")
_ID = struct.Struct(">i")


def _payload(correlation_id: int, body: object) -> bytes:
    packed: bytes = msgpack.packb(body)
    return _ID.pack(correlation_id) + packed


def request_payload(correlation_id: int, request: ControlRequest) -> bytes:
    """The frame without its length, which the network client puts before it."""
    return _ID.pack(correlation_id) + pack_body(messages.request_body(request))


def request_frame(correlation_id: int, request: ControlRequest) -> bytes:
    """The whole frame, with its length."""
    return _with_length(request_payload(correlation_id, request))


def response_frame(correlation_id: int, response: ControlResponse) -> bytes:
    """The whole frame, with its length."""
    return _with_length(_payload(correlation_id, messages.response_body(response)))


def _with_length(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def _parse(frame: bytes | memoryview) -> tuple[int, Sequence[object]]:
    if len(frame) < _ID.size:
        raise ValueError(f"a control frame of {len(frame)} bytes")
    try:
        # Tuples, as the messages have them. The collector would look through them again and again while they grow.
        body = msgpack.unpackb(frame[_ID.size :], strict_map_key=False, use_list=False)
    except (msgpack.UnpackException, msgpack.ExtraData, ValueError) as error:
        raise ValueError(f"the control frame is no msgpack: {error}") from None
    if not isinstance(body, tuple) or not body:
        raise ValueError("the control frame is no list")
    return _ID.unpack_from(frame)[0], body


def parse_request(frame: bytes | memoryview) -> tuple[int, ControlRequest]:
    """(correlation id, request) of a frame without its length. Raises ValueError or TypeError for anything else."""
    correlation_id, body = _parse(frame)
    return correlation_id, messages.parse_request(body)


def parse_response(frame: bytes | memoryview) -> tuple[int, ControlResponse]:
    """(correlation id, response) of a frame without its length. Raises ValueError or TypeError for anything else."""
    correlation_id, body = _parse(frame)
    return correlation_id, messages.parse_response(body)
