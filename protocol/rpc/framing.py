"""Frames of the control plane (FMT-4). Pure.

int32 length | int32 correlation id | msgpack body            (both directions)
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import TypeVar

import msgpack

from protocol.rpc import messages
from protocol.rpc.messages import ControlRequest, ControlResponse
from protocol.rpc.packed_states import pack_body
from protocol.rpc.parsing import parsing_request, parsing_response

__all__ = ["parse_request", "parse_response", "parsing_request", "parsing_response", "request_frame", "response_frame"]

_LENGTH = struct.Struct(">i")
_ID = struct.Struct(">i")

Parsed = TypeVar("Parsed")


def _payload(correlation_id: int, body: object) -> bytes:
    packed: bytes = msgpack.packb(body)
    return _ID.pack(correlation_id) + packed


def request_payload(correlation_id: int, request: ControlRequest) -> bytes:
    """The frame without its length, which the network client adds."""
    return _ID.pack(correlation_id) + pack_body(messages.request_body(request))


def request_frame(correlation_id: int, request: ControlRequest) -> bytes:
    """The whole frame, with its length."""
    return _with_length(request_payload(correlation_id, request))


def response_frame(correlation_id: int, response: ControlResponse) -> bytes:
    """The whole frame, with its length."""
    return _with_length(_payload(correlation_id, messages.response_body(response)))


def _with_length(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def parse_request(frame: bytes | bytearray | memoryview) -> tuple[int, ControlRequest]:
    """(correlation id, request) of a frame without its length. Raises ValueError for anything else."""
    return _at_once(parsing_request(frame))


def parse_response(frame: bytes | bytearray | memoryview) -> tuple[int, ControlResponse]:
    """(correlation id, response) of a frame without its length. Raises ValueError for anything else."""
    return _at_once(parsing_response(frame))


def _at_once(steps: Generator[object, None, Parsed]) -> Parsed:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            parsed: Parsed = end.value
            return parsed
