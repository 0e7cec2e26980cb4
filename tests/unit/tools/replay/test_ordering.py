"""Merging and sorting: the same rows, in order, and rows with the same time as they were."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.replay.traces import ordering
from tools.replay.traces.ordering import in_whole_times, merged, runs_directory, sorted_stream

TIMES = st.lists(st.integers(0, 8), max_size=30)
SCHEMA = pyarrow.schema([("time_ns", pyarrow.int64()), ("name", pyarrow.string())])


def batches(times: list[int], stream: int, size: int) -> Iterator[pyarrow.RecordBatch]:
    for first in range(0, len(times), size):
        part = times[first : first + size]
        names = [f"{stream} {number}" for number in range(first, first + len(part))]
        yield pyarrow.record_batch([part, names], schema=SCHEMA)


def rows(tables: Iterator[pyarrow.Table]) -> list[tuple[int, str]]:
    return [(row["time_ns"], row["name"]) for table in tables for row in table.to_pylist()]


@given(st.lists(TIMES, max_size=5), st.integers(1, 6))
def test_merging_is_sorting_what_is_one_after_the_other(streams: list[list[int]], size: int) -> None:
    given_rows = [
        row
        for number, times in enumerate(streams)
        for row in rows(map(pyarrow.Table.from_batches, ([batch] for batch in batches(sorted(times), number, size))))
    ]
    merging = merged([batches(sorted(times), number, size) for number, times in enumerate(streams)])
    assert rows(merging) == sorted(given_rows, key=lambda row: row[0])


@settings(max_examples=30)
@given(TIMES, st.integers(1, 6), st.integers(1, 40), st.integers(1, 5))
def test_sorting_by_way_of_files(times: list[int], size: int, run_rows: int, chunk_rows: int) -> None:
    with TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "CHUNK_ROWS", chunk_rows)
        patch.setattr(ordering, "OPEN_ROWS", 1)
        with runs_directory(Path(parent, "out")) as directory:
            found = rows(sorted_stream(batches(times, 0, size), directory, run_rows=run_rows))
        assert list(Path(parent).iterdir()) == []
    assert found == [(time, f"0 {number}") for time, number in sorted(zip(times, range(len(times)), strict=True))]


@given(st.lists(st.none() | st.integers(0, 8), max_size=30), st.integers(1, 6))
def test_rows_of_one_time_stay_together(times: list[int], size: int) -> None:
    tables = [table["time_ns"].to_pylist() for table in in_whole_times(batches(times, 0, size))]
    assert [time for table in tables for time in table] == times
    assert all(before[-1] != after[0] for before, after in itertools.pairwise(tables))
