"""Frames of the control plane (FMT-4). Pure.

int32 length | int32 correlation id | msgpack body            (both directions)
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Generator, Sequence

import msgpack

from protocol.rpc import messages
from protocol.rpc.messages import ControlRequest, ControlResponse
from protocol.rpc.packed_states import pack_body

_LENGTH = struct.Struct(">i")
_ID = struct.Struct(">i")

ROWS_IN_A_STEP = 2000


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


def parsing_request(frame: bytes | memoryview) -> Generator[None, None, tuple[int, ControlRequest]]:
    """As `parse_request`, with stops at which others can have their turn: thirty thousand partitions take 30 ms."""
    unpacker = msgpack.Unpacker(strict_map_key=False, use_list=False, max_buffer_size=0)
    unpacker.feed(frame[_ID.size :])
    try:
        body: list[object] = []
        rows: list[object] = []
        count = unpacker.read_array_header()
        for at in range(count):
            row = messages.ROW_OF.get(body[0]) if at == messages.ROWS_AT else None
            if row is None:
                body.append(unpacker.unpack())
                continue
            for done in range(1, unpacker.read_array_header() + 1):
                rows.append(row(*unpacker.unpack()))
                if done % ROWS_IN_A_STEP == 0:
                    yield
            body.append(())
        if unpacker.tell() != len(frame) - _ID.size:
            raise ValueError("the control frame goes on after its end")
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"the control frame is no msgpack: {error}") from None
    request = messages.parse_request(body)
    if rows:
        request = dataclasses.replace(request, partitions=tuple(rows))  # type: ignore[arg-type]
    return _ID.unpack_from(frame)[0], request


def parse_response(frame: bytes | memoryview) -> tuple[int, ControlResponse]:
    """(correlation id, response) of a frame without its length. Raises ValueError or TypeError for anything else."""
    correlation_id, body = _parse(frame)
    return correlation_id, messages.parse_response(body)
