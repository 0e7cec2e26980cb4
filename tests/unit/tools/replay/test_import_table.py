"""Tables of events become traces (RPL-5), and what is no table is refused with its file, row and column."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from protocol.kafka.record_batch import build_batch
from tests.support.small_traces import rows_of
from tools.replay.traces import import_table
from tools.replay.traces.check import check
from tools.replay.traces.import_table import TableImport
from tools.replay.traces.schema import Trace, TraceError

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.thorough, pytest.mark.timeout(600)]
"""Each test is a Spark job or several. `test_trace_commands.py` has one for the quick run."""

EVENTS = [
    {"at": "2024-01-31T10:00:02Z", "user": "bob", "n": 2, "kind": "b"},
    {"at": "2024-01-31T10:00:00Z", "user": "ann", "n": 1, "kind": 'say "a"'},
    {"at": "2024-01-31T10:00:01Z", "user": None, "n": None, "kind": "c"},
]
CSV = 'at,user,n,kind\n2024-01-31T10:00:02Z,bob,2,b\n2024-01-31T10:00:00Z,ann,1,"say ""a"""\n2024-01-31T10:00:01Z,,,c\n'
HEAD = "at,user\n"
ROW = "2024-01-31T10:00:00Z,a\n"
USERS = TableImport("at", key_column="user", topic="t", partitioner="crc32")


def written(path: Path) -> Path:
    """The events in the format of the suffix."""
    match path.suffix:
        case ".csv":
            path.write_text(CSV)
        case ".gz":
            path.write_bytes(gzip.compress(CSV.encode()))
        case ".json":
            path.write_text("\n\n".join(map(json.dumps, EVENTS)))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(EVENTS), path)
    return path


def read(table: Path, options: TableImport) -> list[pyarrow.RecordBatch]:
    """The events, as a task of Spark reads them."""
    return list(import_table._read(options, [pyarrow.RecordBatch.from_pylist([{"file": 0, "path": str(table)}])]))


def size(event: dict[str, Any]) -> int:
    """The size of the batch that a producer of this event would send."""
    key = None if event["user"] is None else event["user"].encode()
    value = json.dumps(event, separators=(",", ":")).encode()
    return len(build_batch([(key, value, (), 0)]))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".json", ".parquet"])
def test_each_format_gives_the_same_trace(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "out"
    assert import_table.import_table([written(tmp_path / f"events{suffix}")], out, USERS)[:2] == (3, 3)
    assert rows_of(out, "time_ns", "request", "op", "client", "topic", "partition", "key_hash", "records", "bytes") == [
        (0, 0, "produce", "producer-1", "t", -1, zlib.crc32(b"ann"), 1, size(EVENTS[1])),
        (1000, 1, "produce", "producer-1", "t", -1, None, 1, size(EVENTS[2])),
        (2000, 2, "produce", "producer-1", "t", -1, zlib.crc32(b"bob"), 1, size(EVENTS[0])),
    ]
    assert Trace(out).info.start == int(datetime(2024, 1, 31, 10, tzinfo=UTC).timestamp()) * 10**9
    assert check(out).count == 0


def test_topics_clients_and_consumers(tmp_path: Path) -> None:
    options = TableImport(
        "at", topic_column="kind", client_column="n", value_columns=["n"], consumers=2, partitions=3, group="g"
    )
    table = tmp_path / "t.csv"
    table.write_text("at,kind,n\n2024-01-01,x,7\n2024-01-01,y,8\n2024-01-02,x,7\n2024-01-03,x,7\n")
    out = tmp_path / "out"
    assert import_table.import_table([table], out, options)[:2] == (4, 4)
    assert rows_of(out, "op", "client", "topic", "partition", "request", "group") == [
        ("produce", "7", "x", -1, 0, None),
        ("fetch", "consumer-g-1", "x", 0, 4, "g"),
        ("produce", "8", "y", -1, 1, None),
        ("fetch", "consumer-g-2", "y", 1, 5, "g"),
        ("produce", "7", "x", -1, 2, None),
        ("fetch", "consumer-g-1", "x", 2, 6, "g"),
        ("produce", "7", "x", -1, 3, None),
        ("fetch", "consumer-g-1", "x", 0, 7, "g"),
    ]
    assert Trace(out).info.topics == {"x": 3, "y": 3}
    assert set(rows_of(out, "bytes")) == {len(build_batch([(None, b'{"n":7}', (), 0)]))}
    assert check(out).count == 0


def test_columns_say_sizes_records_and_partitions(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("ms,size,batch,part,text,more\n0,500,3,1,abcd,x\n1,1200,1,0,,y\n")
    common = {"time_unit": "ms", "topic": "t", "partition_column": "part"}
    whole = TableImport("ms", bytes_column="size", records_column="batch", **common)
    assert import_table.import_table([table], tmp_path / "batches", whole) == (2, 2, ["more", "text"])
    assert rows_of(tmp_path / "batches", "partition", "records", "bytes") == [(1, 3, 500), (0, 1, 1200)]
    raw = TableImport("ms", raw_value_column="text", **common)
    assert import_table.import_table([table], tmp_path / "raw", raw)[2] == ["batch", "more", "size"]
    one = [len(build_batch([(None, value, (), 0)])) for value in (b"abcd", None)]
    assert rows_of(tmp_path / "raw", "partition", "bytes") == list(zip((1, 0), one, strict=True))
    sized = TableImport("ms", bytes_column="size", batch_ms=5, partitions=2, **common)
    import_table.import_table([table], tmp_path / "gathered", sized)
    assert rows_of(tmp_path / "gathered", "partition", "records") == [(1, 1), (0, 1)]
    for column, words in (("text", "is not a column of whole numbers"), ("more", "is not a column")):
        with pytest.raises(TraceError, match=f"column {column}: {words}"):
            read(table, TableImport("ms", bytes_column=column, **common))


def test_events_are_sorted_over_files_and_gathered(tmp_path: Path) -> None:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("at\n1020\n1000\n")
    second.write_text("at\n1010\n5000\n")
    options = TableImport("at", time_unit="ms", topic="t", batch_ms=15, partitions=1)
    assert import_table.import_table([first, second], tmp_path / "out", options)[:2] == (4, 3)
    assert rows_of(tmp_path / "out", "time_ns", "records") == [(15, 2), (35, 1), (4015, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.csv", "2.csv", "out"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "table is empty"),
        (b"when,user\n1,2\n", "table has no column at; it has when, user"),
        (f"{HEAD}{ROW},a\n".encode(), "table: row 3: column at: has no time"),
        (f"{HEAD}{ROW}{ROW}soon,a\n".encode(), "table: row 4: column at: 'soon' is not a time"),
        (f"{HEAD}{ROW}2024\n".encode(), "table: row 3: expected 2 columns, found 1"),
        (f"{HEAD}{ROW}".encode() + b"2024-01-31T10:00:00Z,\xff\n", "table is not a CSV file that can be read"),
        (b"\x7fELF\x00\x01\n\x00", "table is not a CSV, Parquet or JSON file"),
        (b"at,at\n1,2\n", "table: row 1: the header has the column 'at' twice"),
        (b"PAR1 and no more", "table is not a Parquet file that can be read"),
        (gzip.compress(CSV.encode() * 100)[:-50], "table: the gzip file is cut off"),
        (b'{"at": "2024-01-01", "user": "a"}\n\n{"at" 1}', "table: line 3, column 7: not JSON"),
        (b'{"at": "2024-01-01", "user": "a"}\n{"user": "a"}', "table: line 2: column at: has no time"),
        (b'{"at": "2024-01-01", "user": "a"}\n3', "table: line 2: expected an object"),
        (b'{"at": "2024-01-01"}', "table has no column user; it has at"),
        (b'{"at": [1], "user": "a"}', r"table: line 1: column at: '\[1\]' is not a time"),
        (b'[{"at": 1}]', "table is a JSON array"),
    ],
    ids=str,
)
def test_what_is_no_table(tmp_path: Path, content: bytes, says: str) -> None:
    table = tmp_path / "table"
    table.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read(table, USERS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (TableImport("at", topic_column="user"), r"row 3: column user: 'a b' is not a topic name"),
        (TableImport("at", topic="t", client_column="n"), "row 2: column n: is null"),
    ],
)
def test_values_that_cannot_be_used(tmp_path: Path, options: TableImport, says: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text("at,user,n\n2024-01-01,ok,\n2024-01-01,a b,1\n")
    with pytest.raises(TraceError, match=says):
        read(table, options)


def test_nothing_is_left_of_an_import_that_failed(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for content, says in ((HEAD, "table: no rows"), (f"{HEAD}{ROW},a\n", "table: row 3: column at: has no time")):
        table.write_text(content)
        with pytest.raises(TraceError, match=says):
            import_table.import_table([table], tmp_path / "out", USERS)
        assert list(tmp_path.iterdir()) == [table]
