"""Reading and writing by schema in steps: as kio does it, and no more than a message may have (BAD-11, NET-4).

`test_messages.py` has the comparison of every message in both directions.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any

import pytest

from protocol.kafka import by_schema, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.wire import REQUEST_ELEMENTS_MAX

ROWS = [{"error_code": 0, "partition": number, "leader_epoch": 1, "end_offset": 2} for number in range(1000)]


def ended(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """(number of pauses, value)"""
    stops = 0
    while True:
        try:
            next(steps)
            stops += 1
        except StopIteration as end:
            return stops, end.value


def epoch_ends(partitions: Any) -> dict[str, Any]:
    return {"throttle_time": 0, "topics": [{"topic": "t", "partitions": partitions}]}


def test_a_response_is_written_in_steps_from_an_iterator() -> None:
    key, version = ApiKey.OFFSET_FOR_LEADER_EPOCH, 4
    asked: list[int] = []

    def rows() -> Generator[dict[str, int], None, None]:
        for row in ROWS:
            asked.append(row["partition"])
            yield row

    steps = messages.encoding(key, version, epoch_ends(rows()))
    next(steps)
    assert len(asked) == by_schema.ELEMENTS_IN_A_STEP
    stops, pieces = ended(steps)
    assert stops >= 8
    assert b"".join(pieces) == messages.encode_response(key, version, epoch_ends(ROWS))


def test_a_long_response_comes_in_pieces() -> None:
    _, pieces = ended(messages.encoding(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epoch_ends(ROWS * 20)))
    assert len(pieces) > 3
    assert all(by_schema.PIECE_SIZE <= len(piece) < by_schema.PIECE_SIZE + 100 for piece in pieces[:-1])


def test_a_response_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ANSWER_BYTES_MAX", 1000)
    with pytest.raises(AnswerTooLarge):
        ended(messages.encoding(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epoch_ends(ROWS)))


def test_an_error_message_is_cut() -> None:
    body = {"throttle_time": 0, "error_code": 1, "error_message": "x" * 50_000, "responses": []}
    data = messages.encode_response(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
    assert len(data) < by_schema.MESSAGE_CHARACTERS_MAX + 100


def test_a_request_is_read_in_steps() -> None:
    data = b"\x00\x00\x00\x00" + struct.pack(">i", 1000) + b"\x00\x01g" * 1000
    stops, body = ended(messages.decoding(ApiKey.DESCRIBE_GROUPS, 0, data[4:], 0))
    assert body.groups == ("g",) * 1000
    assert stops == 1000 // by_schema.ELEMENTS_IN_A_STEP


@pytest.mark.parametrize("count", [REQUEST_ELEMENTS_MAX + 1, 2**31 - 1, -2])
def test_an_array_that_is_too_long_is_refused(count: int) -> None:
    """No element is created."""
    data = struct.pack(">i", count) + b"\x00\x00" * (REQUEST_ELEMENTS_MAX + 1)
    with pytest.raises(MalformedRequest):
        next(messages.decoding(ApiKey.DESCRIBE_GROUPS, 0, data, 0))


def test_the_elements_of_all_arrays_count_towards_the_limit() -> None:
    half = REQUEST_ELEMENTS_MAX // 2
    topic = b"\x00\x01t" + struct.pack(">i", half + 1) + bytes(4 * (half + 1))
    with pytest.raises(MalformedRequest, match="elements"):
        ended(messages.decoding(ApiKey.DESCRIBE_LOG_DIRS, 1, struct.pack(">i", 2) + topic * 2, 0))


def test_a_string_of_a_flexible_version_has_the_same_limit() -> None:
    size = 2**15
    data = b"\x02" + bytes((size + 1 & 0x7F | 0x80, size + 1 >> 7 & 0x7F | 0x80, size + 1 >> 14)) + b"x" * size
    with pytest.raises(MalformedRequest, match="a string of 32768 bytes"):
        ended(messages.decoding(ApiKey.DESCRIBE_GROUPS, 5, data + b"\x00\x00", 0))
