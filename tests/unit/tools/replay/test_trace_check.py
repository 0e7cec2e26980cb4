"""A check names the row and the column of everything that is wrong in a trace (RPL-1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.small_traces import as_given, end, fetch, produce, written
from tools.replay.run.driver import changes_of, facts_of
from tools.replay.traces.check import SHOWN, SINCE_1970, check
from tools.replay.traces.schema import SCHEMA, Trace, TraceError

RIGHT = [
    produce(0, 1),
    produce(0, 1, partition=1),
    fetch(0, 2, records=0, bytes=0),
    produce(5, 0, partition=-1, key_hash=77),
    produce(5, 3, topic="unknown", partition=99),
]


def test_a_trace_that_is_right(tmp_path: Path) -> None:
    found = check(as_given(tmp_path / "t", RIGHT))
    assert (found.rows, found.count, found.first, found.notes) == (5, 0, [], [])


def test_a_trace_that_another_program_wrote(tmp_path: Path) -> None:
    """Without ottla's metadata, with the integers and texts of pandas, and only with the columns that no default can stand for."""
    for part, op in enumerate(("produce", "fetch")):
        table = {
            "time_ns": pyarrow.array([10 * part, 10 * part + 5]),
            "op": pyarrow.array([op, op]),
            "client": pyarrow.array(["a", "b"], pyarrow.large_string()),
            "topic": pyarrow.array(["t", "t"]),
            "partition": pyarrow.array([0, 1]),
            "records": pyarrow.array([1, 2]),
            "bytes": pyarrow.array([90, 99]),
        }
        (tmp_path / "t").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t" / f"{part}.parquet")
    assert check(tmp_path / "t").first == []
    rows = [row for batch in Trace(tmp_path / "t").batches() for row in batch.to_pylist()]
    assert [(row["request"], row["acks"], row["compression"], row["max_wait_ms"]) for row in rows] == [
        (0, -1, "none", None),
        (1, -1, "none", None),
        (2, None, None, 500),
        (3, None, None, 500),
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (produce(0, 9, time_ns=None), "time_ns: is null"),
        (produce(6, 9, client=None), "client: is null"),
        (produce(4, 9), "time_ns: 4000000 is before the time of the row before"),
        (produce(6, 9, op="delete"), "op: delete is none of produce, fetch, commit, abort, offsets"),
        (produce(6, 9, compression="rar"), "compression: rar is none of none, gzip, snappy, lz4, zstd"),
        (produce(6, 9, compression=None), "compression: is null in a produce"),
        (produce(6, 9, acks=2), "acks: 2 is none of -1, 0, 1"),
        (produce(6, 9, records=-1), "records: -1 is negative"),
        (produce(6, 9, bytes=-5), "bytes: -5 is negative"),
        (produce(6, 9, partition=-2), "partition: -2 is below -1"),
        (produce(6, 9, partition=2), "partition: 2 is not a partition of topic t, which has 2"),
        (produce(6, 9, min_bytes=1), "min_bytes: is 1 in a produce, which has none"),
        (fetch(6, 9, max_wait_ms=None), "max_wait_ms: is null in a fetch"),
        (fetch(6, 9, acks=1), "acks: is 1 in a fetch, which has none"),
        (fetch(6, 9, records=0), "bytes: 100 for 0 records"),
        (produce(6, 9, records=0, bytes=0), "records: 0 in a produce"),
        (produce(6, 1), "request: 1 was that of a request at another time"),
        (produce(5, 3, client="other"), "client: other is not that of the other rows of its request"),
        (fetch(5, 3, client="app"), "op: fetch is not that of the other rows of its request"),
    ],
    ids=str,
)
def test_a_row_that_is_wrong(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    found = check(as_given(tmp_path / "t", [*RIGHT, row]))
    assert [str(finding) for finding in found.first] == [f"row 6: {expected}"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (end(6, 9, "commit"), None),
        (produce(6, 9, transactional=True, transactional_id="id"), None),
        (fetch(6, 9, read_committed=True), None),
        (end(6, 9, "offsets", topic="t", group="g"), None),
        (end(6, 9, "offsets", topic="t"), "group: is null in a row of offsets"),
        (end(6, 9, "offsets", topic="t", group="g", records=1), "records: 1 in offsets"),
        (end(6, 9, "abort", transactional_id=None), "transactional_id: is null in a commit or abort"),
        (end(6, 9, "abort", topic="t"), "topic: t in a commit or abort"),
        (end(6, 9, "commit", acks=-1), "acks: is -1 in a commit or abort, which has none"),
        (fetch(6, 9, transactional_id="id"), "transactional_id: is id in a fetch, which has none"),
        (produce(6, 9, read_committed=True), "read_committed: is True in a produce, which has none"),
    ],
    ids=str,
)
def test_rows_of_transactions(tmp_path: Path, row: dict[str, Any], expected: str | None) -> None:
    found = check(as_given(tmp_path / "t", [*RIGHT, {"transactional_id": None, "read_committed": None, **row}]))
    assert [str(finding) for finding in found.first] == ([] if expected is None else [f"row 6: {expected}"])


@pytest.mark.parametrize("row", [produce(6, 9, op="comit"), end(6, 9, "abort", transactional_id=None)], ids=str)
def test_what_no_task_could_send_is_refused_at_the_start(tmp_path: Path, row: dict[str, Any]) -> None:
    path = as_given(tmp_path / "t", [*RIGHT, {"transactional_id": None, "read_committed": None, **row}])
    with pytest.raises(TraceError, match="no known op"):
        facts_of(Trace(path))


def test_offsets_of_transactions_without_an_end_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [end(0, 0, "offsets", topic="t", partition=at, group="g", client=client) for client in "ab" for at in (0, 1)]
    facts = facts_of(Trace(written(tmp_path / "t", [*rows, end(1, 1, "commit", client="a")])))
    assert (facts.rows, facts.offsets, facts.offsets_left_out) == (5, 4, 2)
    assert changes_of(facts, {"t": "t"}, ()) == [
        "2 offsets in transactions are left out: the trace does not know how these ended"
    ]
    with pytest.raises(TraceError, match="no produce and no fetch"):
        facts_of(Trace(written(tmp_path / "ends", [end(0, 0, "commit")])))


def test_times_count_from_the_start_of_the_trace_and_not_since_1970(tmp_path: Path) -> None:
    path = as_given(tmp_path / "t", [produce(1_700_000_000_000 + at, at) for at in range(2)])
    reason = "time_ns, 1700000000000000000, counts since 1970: subtract it from every row"
    assert [f"{found.column}, {found.reason}" for found in check(path).first] == [
        f"time_ns, 1700000000000000000 {SINCE_1970}"
    ]
    with pytest.raises(TraceError, match=reason):
        facts_of(Trace(path))


def test_keys_need_a_size_and_a_hash_for_each_record(tmp_path: Path) -> None:
    keyed = pyarrow.Table.from_pylist([produce(at, at, records=3 - 2 * at) for at in (0, 1)], schema=SCHEMA)
    keyed = keyed.append_column("keys", pyarrow.array([[1, 2], [1]]))
    pyarrow.parquet.write_table(keyed, tmp_path / "t.parquet")
    assert [str(finding) for finding in check(tmp_path / "t.parquet").first] == [
        "row 1: key_bytes: is null beside keys",
        "row 1: keys: has neither one hash nor one for each record",
        "row 2: key_bytes: is null beside keys",
    ]


def test_a_request_whose_rows_are_apart_in_one_time_is_right(tmp_path: Path) -> None:
    rows = [produce(0, 1), fetch(0, 2), produce(0, 1, partition=1), fetch(0, 2, partition=1)]
    assert check(as_given(tmp_path / "t", rows)).count == 0


def test_the_first_findings_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    found = check(as_given(tmp_path / "t", [produce(0, number, acks=7, records=-1) for number in range(50)]))
    assert found.count == 100
    assert len(found.first) == SHOWN
    assert [finding.row for finding in found.first] == [row for row in range(1, 11) for _ in range(2)]
