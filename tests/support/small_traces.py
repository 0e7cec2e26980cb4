"""Traces of a few rows, for tests of code that reads or changes traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tools.replay.traces.schema import FIELDS, METADATA_KEY, SCHEMA, Trace, TraceInfo, TraceWriter

START = 1_700_000_000_000_000_000
MS = 1_000_000
PRODUCE = {"op": "produce", "compression": "none", "acks": -1, "transactional": False, "client": "app"}
FETCH = {"op": "fetch", "min_bytes": 1, "max_wait_ms": 500, "max_bytes": 1000, "group": "g", "client": "reader"}
COMMON = {"topic": "t", "partition": 0, "records": 1, "bytes": 100}


def produce(at_ms: int, request: int, **columns: Any) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMA.names), **COMMON, **PRODUCE, "time_ns": at_ms * MS, "request": request, **columns}


def fetch(at_ms: int, request: int, **columns: Any) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMA.names), **COMMON, **FETCH, "time_ns": at_ms * MS, "request": request, **columns}


def end(at_ms: int, request: int, op: str, **columns: Any) -> dict[str, Any]:
    """The end of a transaction."""
    row = {
        **dict.fromkeys(SCHEMA.names),
        "topic": "",
        "partition": 0,
        "records": 0,
        "bytes": 0,
        "client": "app",
        "op": op,
    }
    return {**row, "time_ns": at_ms * MS, "request": request, "transactional_id": "id", **columns}


def written(path: Path, rows: list[dict[str, Any]], start: int = START, **topics: int) -> Path:
    """A valid trace."""
    with TraceWriter(path, TraceInfo(start, "a test", topics or {"t": 2})) as writer:
        writer.write(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(columns_of(rows))))
    return path


def columns_of(rows: list[dict[str, Any]]) -> list[pyarrow.Field]:
    """Those of every trace, and those that a row has."""
    return [field for field in FIELDS.values() if field.name in SCHEMA.names or any(field.name in row for row in rows)]


def as_given(path: Path, rows: list[dict[str, Any]], **topics: int) -> Path:
    """A trace whose rows may be wrong."""
    schema = pyarrow.schema([field.with_nullable(True) for field in columns_of(rows)])
    info = TraceInfo(START, "a test", topics or {"t": 2}).to_json().encode()
    table = pyarrow.Table.from_pylist(rows, schema=schema.with_metadata({METADATA_KEY: info}))
    pyarrow.parquet.write_table(table, path)
    return path


def rows_of(path: Path, *columns: str) -> list[Any]:
    """The rows as tuples of these columns, times in milliseconds; of one column, its values."""
    rows = [row for batch in Trace(path).batches() for row in batch.to_pylist()]
    for row in rows:
        row["time_ns"] /= MS
    return [row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows]
