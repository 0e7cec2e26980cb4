"""The control plane's frames, in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack

from protocol.errors import ErrorCode
from protocol.rpc import framing
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
)
from tests.fuzz.decoder import Decoder
from tests.support.control_plane import SAMPLE_RESPONSE, SAMPLES


def decoders() -> list[Decoder]:
    wrong = (ValueError, TypeError)
    return [
        Decoder("control-request", _request, _requests, wrong, memory=4 << 20),
        Decoder("control-response", _response, _responses, wrong),
    ]


def _request(data: bytes) -> object:
    """Both readers find the same. The result is written and read again."""
    whole, why = _outcome(data)
    slowly, why_slowly = _outcome_in_steps(data)
    assert (whole is None) == (slowly is None), f"{why!r} is not {why_slowly!r}"
    if whole is None or slowly is None:
        raise ValueError(why)
    correlation_id, request = whole
    assert slowly[0] == correlation_id
    assert str(slowly[1]) == str(request)
    _check(request)
    again = framing.parse_request(framing.request_payload(correlation_id, request))
    # nan is not itself
    assert str(again[1]) == str(request)
    return request


def _outcome(data: bytes) -> tuple[tuple[int, ControlRequest] | None, Exception | None]:
    try:
        return framing.parse_request(data), None
    except (ValueError, TypeError) as error:
        return None, error


def _outcome_in_steps(data: bytes) -> tuple[tuple[int, ControlRequest] | None, Exception | None]:
    if len(data) < 4:
        return None, None
    steps = framing.parsing_request(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, None
        except (ValueError, TypeError) as error:
            return None, error


def _check(request: ControlRequest) -> None:
    """Fields that other code compares or uses as an index have their type."""
    assert type(request.broker_epoch) is int
    if isinstance(request, ControlledShutdownRequest):
        assert type(request.broker_id) is int
        return
    assert type(request.controller_id) is int
    assert type(request.controller_epoch) is int
    for state in request.partitions:
        assert isinstance(state, PartitionState | StopReplicaPartition)
        assert type(state.topic) is str
        assert type(state.partition) is int
        assert type(state.leader_epoch) is int
    assert all(type(name) is str and type(text) is str for name, text in request.topic_ids.items())


def _requests() -> Iterator[bytes]:
    empty = LeaderAndIsrRequest(1, 7, 4_294_967_310, (), {})
    for number, request in enumerate((empty, *SAMPLES.values())):
        yield framing.request_payload(number, request)


def _response(data: bytes) -> object:
    correlation_id, response = framing.parse_response(data)
    assert isinstance(response.error, ErrorCode)
    again = framing.parse_response(framing.response_frame(correlation_id, response)[4:])
    assert str(again) == str((correlation_id, response))
    return response


def _responses() -> Iterator[bytes]:
    for response in (ControlResponse(), ControlResponse(ErrorCode.STALE_BROKER_EPOCH), SAMPLE_RESPONSE):
        yield framing.response_frame(1, response)[4:]
    yield b"\0\0\0\1" + msgpack.packb([0, 5])
