"""The judge of the chaos of pipelines finds what must not be, and excuses what was deleted, and nothing else (TXN-1, TXN-4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch, patch
from tests.support.pipeline_judge import Evidence
from tests.support.pipeline_readers import latest_values
from tests.support.pipeline_worker import ranges_of


def committed(since: float, *places: tuple[int, int]) -> dict[str, Any]:
    return {"what": "committed", "since": since, "places": {str(p): of for p, of in ranges_of(places).items()}}


GOOD = Evidence(
    starts={0: 0, 1: 2},
    ends={0: 2, 1: 4},
    output={
        (0, 0): b"0@0",
        (0, 1): b"1@2",
        (1, 0): b"0@1",
        (1, 1): b"1@3",
        (2, 0): b"f1:7 at 0@3",
        (2, 1): b"f1:7 at 0@3",
        (2, 2): b"f2:8 at 0@0",
    },
    side=[{(0, 0): b"0@0"}, {(0, 0): b"1@3", (0, 1): b"0@1", (0, 2): b"f2:8 at 0@0"}],
    disturbed_until=10.0,
    fleeting_last=b"f2:",
    lines=[
        committed(9.0, (0, 0), (1, 2)),
        {"what": "skipped", "partition": 1, "from": 0, "to": 2},
        committed(11.0, (0, 1), (1, 3)),
    ],
)


def changed(**fields: Any) -> list[str]:
    return dataclasses.replace(GOOD, **fields).problems()


def test_records_that_were_deleted_may_be_missing() -> None:
    """Those before the input's log start, which no worker read; and in the side output, those of transactions that began before it
    was made again. Records of an earlier fleeting input may be there twice."""
    assert GOOD.problems() == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"starts": {0: 0, 1: 1}}, "1 records of the input are not in the output: 1@1"),
        ({"starts": {0: 0, 1: 1}}, "1 skipped records were not deleted: 1@0 to 2"),
        (
            {"starts": {0: 2, 1: 4}, "output": {}, "side": []},
            "4 records of the input are not in the output: 0@0, 0@1, 1@2, 1@3",
        ),
        ({"output": GOOD.output | {(5, 7): b"0@0"}}, "1 records are in the output twice: 0@0"),
        ({"output": GOOD.output | {(5, 7): b"0@2"}}, "1 records of the output are of no input: 0@2"),
        ({"side": [*GOOD.side, {(2, 0): b"0@0"}]}, "1 records are in the side output twice: 0@0"),
        ({"side": [*GOOD.side, {(2, 0): b"1@0"}]}, "1 records are in the side output, but not in the output: 1@0"),
        (
            {"output": GOOD.output | {(5, 7): b"f2:8 at 0@0"}},
            "1 records of the fleeting input are in the output twice: f2:8 at 0@0",
        ),
        (
            {"side": [*GOOD.side, {(5, 7): b"f2:8 at 0@0"}]},
            "1 records of the fleeting input are in the side output twice: f2:8 at 0@0",
        ),
        ({"side": GOOD.side[:1]}, "2 committed records are not in the side output: 0@1, 1@3"),
        ({"disturbed_until": 8.0}, "1 committed records are not in the side output: 1@2"),
    ],
)
def test_what_is_missing_or_too_much_is_found(fields: dict[str, Any], problem: str) -> None:
    assert problem in changed(**fields)


def test_the_latest_values_of_a_log() -> None:
    """Records of a transaction count from its commit on, at their own places in the log."""

    def placed(batch: bytes, offset: int) -> bytes:
        found = bytearray(batch)
        patch(found, 0, offset, 0)
        return bytes(found)

    def batch(offset: int, records: Mapping[bytes, bytes | None], producer: int = -1) -> bytes:
        rows = [(key, value, (), 0) for key, value in records.items()]
        attributes = TRANSACTIONAL_BIT if producer >= 0 else 0
        return placed(build_batch(rows, producer_id=producer, attributes=attributes), offset)

    def end(offset: int, producer: int, *, is_commit: bool) -> bytes:
        return placed(marker_batch(producer, 0, Marker(is_commit, 0), 0), offset)

    first = [
        batch(0, {b"a": b"1", b"b": b"1", b"gone": b"1"}),
        batch(3, {b"a": b"2", b"b": b"2"}, producer=7),
        batch(5, {b"b": b"3"}),
        batch(6, {b"a": b"aborted", b"c": b"aborted"}, producer=8),
    ]
    second = [
        end(8, 8, is_commit=False),
        end(9, 7, is_commit=True),
        batch(10, {b"gone": None}),
        batch(11, {b"a": b"open"}, producer=9),
    ]
    assert latest_values(b"".join(first), b"".join(second)) == {b"a": b"2", b"b": b"3"}
