"""The delivery verdict of a replay on planted losses, doubles, swaps, corruption and partitions that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.support.replay_runs import produced, write_run
from tests.support.spark import spark_session
from tools.replay.run.reading_back import FOUND_SCHEMA, compare

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]
Found = tuple[int, int, int | None, int | None, int, str]
"""Partition, offset, producer, first sequence, records, kind."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark") / "scratch") as session:
        yield session


def batch(sequence: int, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """Ten records of producer 0, whose offset is their sequence."""
    values = {"records": 10, "first_sequence": sequence, "offset": sequence}
    return produced(0, 1, partition, **(values | changed))


def judged(session: SparkSession, directory: Path, batches: list[dict[str, Any]], found: list[Found]) -> dict[str, Any]:
    output = write_run(directory, batches)
    output.found.mkdir()
    rows = [dict(zip(FOUND_SCHEMA.names, ("t", *row), strict=True)) for row in found]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=FOUND_SCHEMA), output.found / "0.parquet")
    return compare(session, output)


WRONG = ("lost", "duplicated", "reordered", "corrupted", "unseen", "elsewhere")
GOOD: list[Found] = [(0, at, 0, at, 10, "intact") for at in (0, 10, 20)]
CASES: dict[str, tuple[list[dict[str, Any]], list[Found], dict[str, int]]] = {
    "all is well": ([], GOOD, {}),
    "a lost batch": ([], [GOOD[0], GOOD[2]], {"lost": 10}),
    "two records lost of a batch": (
        [],
        [GOOD[0], (0, 10, 0, 10, 4, "intact"), (0, 16, 0, 16, 4, "intact"), GOOD[2]],
        {"lost": 2},
    ),
    "a double": ([], [*GOOD, (0, 30, 0, 10, 10, "intact")], {"duplicated": 10}),
    "a swap": (
        [],
        [GOOD[0], (0, 20, 0, 10, 10, "intact"), (0, 10, 0, 20, 10, "intact")],
        {"reordered": 1, "elsewhere": 2},
    ),
    "a corrupt record": (
        [],
        [(0, 0, 0, 0, 5, "intact"), (0, 5, None, None, 1, "corrupt"), (0, 6, 0, 6, 4, "intact"), *GOOD[1:]],
        {"lost": 1, "corrupted": 1},
    ),
    "a partition read in part": ([], [GOOD[0], GOOD[1], (0, 20, None, None, 10, "unread")], {"unseen": 10}),
    "a batch in another partition": ([], [GOOD[0], (1, 10, 0, 10, 10, "intact"), GOOD[2]], {"elsewhere": 1}),
    "neither failures nor acks=0 must be found": (
        [batch(30, error="NOT_LEADER_OR_FOLLOWER"), batch(40, acks=0), batch(50, records=0)],
        GOOD,
        {},
    ),
    "a failed batch may be found": (
        [batch(30, error="not answered in time")],
        [*GOOD, (0, 30, 0, 30, 10, "intact")],
        {},
    ),
}


@pytest.mark.parametrize(("more", "found", "expected"), CASES.values(), ids=CASES.keys())
def test_the_verdict_names_what_was_planted(
    session: SparkSession,
    tmp_path: Path,
    more: list[dict[str, Any]],
    found: list[Found],
    expected: dict[str, int],
) -> None:
    verdict = judged(session, tmp_path, [*map(batch, (0, 10, 20)), *more], found)
    assert {name: verdict[name] for name in WRONG} == dict.fromkeys(WRONG, 0) | expected
    assert verdict["acknowledged"] == 30
    for name in ("lost", "duplicated", "reordered", "corrupted", "elsewhere"):
        assert bool(verdict["evidence"][name]) == (name in expected)
