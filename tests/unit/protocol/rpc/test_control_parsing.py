"""Hostile control frames: every field of every request and answer is checked before it is used (FMT-4, BAD-4, BAD-26)."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from protocol.rpc import framing, parsing
from protocol.rpc.messages import UpdateMetadataRequest, request_body, response_body
from protocol.topic_names import is_valid_topic_name
from tests.support.control_plane import SAMPLE_RESPONSE, SAMPLE_STATES, SAMPLE_TOPIC_ID, SAMPLES

WRONG = [True, False, 1.0, math.nan, math.inf, None, b"x", "", "../../x", "a/b", ".", "x" * 250, 2**63, 2**31, -3]
WRONG += [[], {}, [1], {"orders": 1}, {1: SAMPLE_TOPIC_ID}, msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 1)]


def plain(value: Any) -> Any:
    """A copy of `value` with lists and dicts that can be changed."""
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each field, also inside lists and maps."""
    if path:
        yield path
    children = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    body = plain(body)
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return body


def accepts_no_more_than_it_says(body: Any, parse: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> int:
    """Makes each field wrong in many ways: the frame must be refused, or read as it was sent. Returns the number refused."""
    reasons: list[str] = []
    for path in places(body):
        for wrong in WRONG:
            attempt = changed(body, path, wrong)
            packed = msgpack.packb(attempt)
            try:
                parsed = parse(struct.pack(">i", 1) + packed)
            except ValueError as error:
                reasons.append(str(error))
            else:
                assert encode(parsed)[4:] == packed, (path, wrong)
                assert wrong not in (None, b"x") or path[-2:] == (0, 3), (path, wrong)  # a rack may be missing
                assert not isinstance(wrong, float | msgpack.ExtType | msgpack.Timestamp), (path, wrong)
    assert all(reason.isprintable() and len(reason) < 300 for reason in reasons)
    return len(reasons)


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_field_of_a_request_is_checked(kind: str) -> None:
    body = plain(request_body(SAMPLES[kind]))
    assert framing.parse_request(struct.pack(">i", 1) + msgpack.packb(body))[1] == SAMPLES[kind]
    refused = accepts_no_more_than_it_says(
        body, lambda frame: framing.parse_request(frame)[1], lambda request: framing.request_payload(1, request)
    )
    assert refused > 20 * len(WRONG) or kind == "shutdown"


def test_every_field_of_a_response_is_checked() -> None:
    accepts_no_more_than_it_says(
        plain(response_body(SAMPLE_RESPONSE)),
        lambda frame: framing.parse_response(frame)[1],
        lambda response: framing.response_frame(1, response)[4:],
    )


@pytest.mark.parametrize(
    ("kind", "path", "value", "reason"),
    [
        ("leader and isr", (2,), 2**31, "controller epoch"),
        ("leader and isr", (2,), math.nan, "controller epoch"),
        ("metadata", (2,), True, "controller epoch"),
        ("metadata", (3,), 2**63, "broker epoch"),
        ("stop", (4, 1, 0), "../../x", "legal topic name"),
        ("leader and isr", (4, 1, 0), "x" * 250, "legal topic name"),
        ("leader and isr", (4, 1, 1), -1, "a partition is not"),
        ("leader and isr", (4, 1, 2), 8, "controller epoch of a partition"),
        ("leader and isr", (4, 1, 5), [True], "broker id"),
        ("metadata", (4, 2, 7), [1, 2.0, 3], "broker id"),
        ("metadata", (5,), {"orders": "../../../../../../../../x"}, "topic id"),
        ("metadata", (6, 0, 2, 0, 2), 65_536, "port"),
        ("metadata", (9,), {"..": 1}, "legal topic name"),
        ("stop", (4, 0, 3), 1, "true nor false"),
        ("stop", (4, 0), ["orders", 0, -2], "row"),
        ("shutdown", (1,), -1, "broker id"),
    ],
)
def test_a_refusal_gives_the_reason(kind: str, path: tuple[int, ...], value: object, reason: str) -> None:
    body = changed(request_body(SAMPLES[kind]), path, value)
    with pytest.raises(ValueError, match=f"malformed control request.*{reason}"):
        framing.parse_request(struct.pack(">i", 1) + msgpack.packb(body))


def test_one_wrong_value_among_many_equal_ones_is_found() -> None:
    """True == 1 == 1.0, also in a set."""
    rows = [list(SAMPLE_STATES[0]._replace(partition=n)) for n in range(500)]
    for column in (2, 3, 4, 6):
        for wrong in (True, float(rows[0][column])):
            with pytest.raises(ValueError, match="not a whole number"):
                list(parsing._states(7, [tuple(row) for row in changed(rows, (250, column), wrong)]))
    for column in (5, 7, 8, 9, 11):
        ids = rows[0][column]
        for wrong in (True, 1.0):
            bad = [tuple(row) for row in rows]
            bad[250] = (*bad[250][:column], (*ids[:-1], wrong), *bad[250][column + 1 :])
            with pytest.raises(ValueError, match="not a whole number"):
                list(parsing._states(7, bad))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a", "ab", "...", "a" * 249, "a" * 250, "a/b", "a\0", "ä", "a\n", "a b", "-", "_x.Y-9", "\ud800"],
)
def test_checking_all_names_at_once_agrees_with_checking_each(name: str) -> None:
    for names in ({name}, {name, "orders"}):
        if parsing._are_plainly_legal(names):
            assert all(map(is_valid_topic_name, names))
    if is_valid_topic_name(name):
        parsing._check_topics([name, "orders"])
    else:
        with pytest.raises(ValueError, match="legal topic name"):
            parsing._check_topics(["orders", name])


HEAD = b"\x9a\x01\x01\x07\x01"
BOMBS = {
    "nested lists, each of thousands": HEAD + (b"\xdd\x00\x00\xf0\x00" * 20_000),
    "nested lists, each as long as it may be": HEAD + b"\x91" + (b"\xdc\x04\x00" * 20_000),
    "nested lists of one": HEAD + b"\xdd\x00\x00\x00\x09" + b"\x91" * 100_000,
    "a list of 2 billion": HEAD + b"\xdd\x7f\xff\xff\xff" + b"\0" * 100_000,
    "a row of 2 billion": HEAD + b"\x91\xdd\x7f\xff\xff\xff" + b"\0" * 100_000,
    "a row of a million": HEAD + b"\x91\xdd\x00\x0f\xff\xff" + b"\0" * 1_100_000,
    "rows of lists of lists": HEAD + b"\x91" + (b"\xdc\x04\x00" + b"\x90" * 1023) * 1000,
    "a text of 2 GB": HEAD + b"\x91\x9c\xdb\x7f\xff\xff\xff" + b"a" * 200_000,
    "a long text": HEAD + b"\x91\x9c\xdb\x00\x10\x00\x00" + b"a" * 2**20,
    "bytes of 2 GB": HEAD + b"\x91\x9c\xc6\x7f\xff\xff\xff" + b"a" * 200_000,
    "an extension of 2 GB": HEAD + b"\x91\x9c\xc9\x7f\xff\xff\xff\x01" + b"a" * 200_000,
    "a map of 2 billion": HEAD + b"\x90\xdf\x7f\xff\xff\xff" + b"\xa1a\xa1a" * 20_000,
    "a map of a million that has ten": HEAD + b"\x90\xdf\x00\x0f\xff\xff" + b"\xa1a\xa1a" * 10,
    "nested maps": HEAD + b"\x91" + b"\x81\xa1a" * 40_000,
    "a deep head": b"\x9a" + b"\x91" * 1000 + b"\xc0",
    "deep broker ids, twice": HEAD
    + b"\x92"
    + (b"\x9c\xa1a\x00\x01\x00\x00" + b"\x91" * 1000 + b"\xc0\x00\x90\x90\x90\xc2\x90") * 2,
    "a head of lists": b"\x9a" + b"\xdc\xff\xff" * 40_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_announced_length_reserves_nothing(bomb: str) -> None:
    """A frame of 65 kB that announced a thousand nested lists took 500 MB for a moment."""
    frame = struct.pack(">i", 1) + BOMBS[bomb]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="malformed control request"):
            framing.parse_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
        with pytest.raises(ValueError, match="malformed control response"):
            framing.parse_response(frame)
    finally:
        tracemalloc.stop()


def test_no_step_unpacks_more_than_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """For wide rows and for many empty ones."""
    at_once: list[int] = []
    states = parsing._states

    def noted(controller_epoch: int, rows: list[Any]) -> Any:
        at_once.append(len(msgpack.packb(rows)))
        return states(controller_epoch, rows)

    monkeypatch.setattr(parsing, "_states", noted)
    wide = SAMPLE_STATES[0]._replace(isr=tuple(range(1000)), replicas=tuple(range(1000)))
    request = UpdateMetadataRequest(1, 7, 1, (wide,) * 400, {}, ())
    frame = framing.request_payload(1, request)
    assert len(frame) > 16 * parsing.PIECE_BYTES
    stops = sum(1 for _ in framing.parsing_request(frame))
    assert stops > 10
    assert max(at_once) <= 2 * parsing.PIECE_BYTES
