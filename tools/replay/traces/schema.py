"""The columns of a trace (RPL-1, RPL-5), and reading and writing it in batches. docs/TRACES.md says what each column means.

A trace is a Parquet file, or a directory of Parquet files whose names are in time order. Each row is one partition of one request. The
Parquet metadata `ottla.trace` holds a JSON object, `TraceInfo`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from protocol.plain_text import shortened
from tools.failures import ExpectedError

VERSION = 1
METADATA_KEY = b"ottla.trace"
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 256 * 1024 * 1024
"""Rows with many keys are large."""
FILE_ROWS = 4 * 1024 * 1024
"""A file of a trace that is written ends with this row, or soon after it."""

PRODUCE, FETCH = "produce", "fetch"
COMMIT, ABORT = "commit", "abort"
ENDS = (COMMIT, ABORT)
"""The end of a transaction: a row without a topic (an empty one), partition, records and bytes (0)."""
OFFSETS = "offsets"
"""A partition whose offset was committed for a group in a transaction; records and bytes are 0."""
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("time_ns", pyarrow.int64(), nullable=False),
        pyarrow.field("request", pyarrow.int64(), nullable=False),
        pyarrow.field("op", pyarrow.string(), nullable=False),
        pyarrow.field("client", pyarrow.string(), nullable=False),
        pyarrow.field("topic", pyarrow.string(), nullable=False),
        pyarrow.field("partition", pyarrow.int32(), nullable=False),
        pyarrow.field("key_hash", pyarrow.int64()),
        pyarrow.field("records", pyarrow.int32(), nullable=False),
        pyarrow.field("bytes", pyarrow.int64(), nullable=False),
        pyarrow.field("compression", pyarrow.string()),
        pyarrow.field("acks", pyarrow.int16()),
        pyarrow.field("transactional", pyarrow.bool_()),
        pyarrow.field("min_bytes", pyarrow.int32()),
        pyarrow.field("max_wait_ms", pyarrow.int32()),
        pyarrow.field("max_bytes", pyarrow.int32()),
        pyarrow.field("group", pyarrow.string()),
        pyarrow.field("offset", pyarrow.int64()),
        pyarrow.field("behind", pyarrow.int64()),
    ]
)
KEYS = pyarrow.schema([("key_bytes", pyarrow.int32()), ("keys", pyarrow.list_(pyarrow.int64()))])
"""Columns that only a trace of records with keys has: the size of each key, and the hash of each record's key. A null in `keys` beside a
`key_bytes`: all records of the batch have the key of `key_hash`."""
TRANSACTIONS = pyarrow.schema([("transactional_id", pyarrow.string()), ("read_committed", pyarrow.bool_())])
"""Columns that only a trace with transactions has: of a produce, of offsets and of an end, and of a fetch."""
FIELDS = MappingProxyType({field.name: field for field in (*SCHEMA, *KEYS, *TRANSACTIONS)})
OF_PRODUCE = ("compression", "acks", "transactional")
OF_FETCH = ("min_bytes", "max_wait_ms", "max_bytes")
ABSENT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        PRODUCE: {"compression": "none", "acks": -1, "transactional": False},
        FETCH: {"min_bytes": 1, "max_wait_ms": 500, "max_bytes": 50 * 1024 * 1024},
    }
)
"""What an absent column means: Kafka's defaults of a client. Other columns that may be null are null if they are absent."""
REQUIRED = ("time_ns", "op", "client", "topic", "partition", "records", "bytes")
NOT_OTTLAS = "a table that another program wrote"
"""The source of a trace without ottla's metadata."""


class TraceError(ExpectedError, ValueError):
    """A trace, or a source of one, that cannot be used. The text names the file and the row, line or column."""


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What a trace says about itself. `start`: the wall time of `time_ns` 0, in nanoseconds since 1970 UTC."""

    start: int
    source: str
    """How it was made, in words, for people."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topic -> number of partitions, as far as it is known."""
    dropped: int = 0
    """Requests that the recorder did not write, because it had no room."""

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)})

    @staticmethod
    def from_json(text: str | bytes) -> TraceInfo:
        """Raises ValueError with the reason, without the file's name."""
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"its metadata ottla.trace is not that of a version {VERSION} trace")
        try:
            topics = {str(topic): int(count) for topic, count in value["topics"].items()}
            return TraceInfo(int(value["start"]), str(value["source"]), topics, int(value["dropped"]))
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"its metadata ottla.trace is incomplete: {problem}") from None


class Trace:
    """A trace on disk, opened: the files' schemas are checked, rows are read in batches."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError if there is no trace, or if a column is missing or has another type."""
        self.path = path
        self.files = _files_of(path)
        infos = self._infos = [self._opened(file) for file in self.files]
        self.rows = sum(rows for rows, _, _ in infos)
        found = {name for _, _, names in infos for name in names}
        self.names = [
            *SCHEMA.names,
            *(name for more in (KEYS, TRANSACTIONS) if found & {*more.names} for name in more.names),
        ]
        if not self.rows:
            raise TraceError(f"{path} is a trace without rows")
        self.info = replace(
            infos[0][1],
            topics={topic: count for _, info, _ in infos for topic, count in info.topics.items()},
        )

    def batches(
        self, columns: list[str] | None = None, rows: int = 64 * 1024, *, nulls: bool = False
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows in the order of the files, `rows` at a time; by default the columns of `names`.

        With `nulls`, every column may have nulls, as the files do.
        Raises TraceError for a damaged file and, without `nulls`, for a null in a column that must not have any.
        """
        schema = pyarrow.schema([FIELDS[name].with_nullable(True) for name in columns or self.names])
        required = [name for name in schema.names if not FIELDS[name].nullable]
        before = 0
        for file, (in_file, *_) in zip(self.files, self._infos, strict=True):
            first = 1
            for batch in _batches_of(file, schema, rows, before):
                if not nulls:
                    _check_nulls(file, batch, required, first)
                first += batch.num_rows
                yield batch if nulls else batch.cast(pyarrow.schema([FIELDS[name] for name in schema.names]))
            before += in_file

    def last_time_ns(self) -> int:
        """The time of the last row. Raises TraceError."""
        file = self.files[-1]
        try:
            with pyarrow.parquet.ParquetFile(file) as opened:
                groups = [at for at in range(opened.num_row_groups) if opened.metadata.row_group(at).num_rows]
                times = opened.read_row_group(groups[-1], columns=["time_ns"])["time_ns"] if groups else []
        except (OSError, pyarrow.ArrowException) as problem:
            raise TraceError(f"{file} cannot be read: {reason_of(problem)}") from problem
        if not len(times) or not times[-1].is_valid:
            raise TraceError(f"{file}: its last row has no time_ns")
        return int(times[-1].as_py())

    @staticmethod
    def _opened(file: Path) -> tuple[int, TraceInfo, list[str]]:
        """The number of rows, what the file says about itself, its columns."""
        try:
            with pyarrow.parquet.ParquetFile(file) as opened:
                schema, rows = opened.schema_arrow, opened.metadata.num_rows
                text = (opened.metadata.metadata or {}).get(METADATA_KEY)
        except (OSError, pyarrow.ArrowException) as problem:
            raise TraceError(f"{file} is not a Parquet file that can be read: {reason_of(problem)}") from problem
        missing = [name for name in REQUIRED if name not in schema.names]
        if missing:
            raise TraceError(f"{file} is not a trace: it has no column {', '.join(missing)}")
        for name in (name for name in FIELDS if name in schema.names):
            found, expected = schema.field(name).type, FIELDS[name].type
            if not _serves(found, expected):
                raise TraceError(f"{file}: column {name} has type {found}, expected {expected}")
        unknown = [name for name in schema.names if name not in FIELDS]
        if unknown:
            raise TraceError(f"{file} has columns that a trace does not have: {', '.join(unknown)}")
        if text is None:
            return rows, TraceInfo(0, NOT_OTTLAS), schema.names
        try:
            return rows, TraceInfo.from_json(text), schema.names
        except ValueError as problem:
            raise TraceError(f"{file} is not a trace: {problem}") from None


class TraceWriter:
    """Writes a trace as a directory of files. Nothing is at `path` until `__exit__` without an error; after one, nothing stays.

    The caller gives rows in time order; `info` may be changed until the end, because some facts are known only then.
    """

    def __init__(self, path: Path, info: TraceInfo) -> None:
        """Raises TraceError if something is at `path` already."""
        if path.exists():
            raise TraceError(f"{path} exists already; remove it, or choose another --out")
        self.path = path
        self.info = info
        self.rows = 0
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._schema: pyarrow.Schema | None = None
        self._rows_of_file = 0
        self._files = 0
        self._last_ns = 0
        self._waiting: list[pyarrow.Table] = []
        self._rows_waiting = self._bytes_waiting = 0

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._write_waiting()
            self._close_file()
            if kind is None:
                if not self.rows:
                    raise TraceError(f"{self.path} was not written: the trace would have no rows")
                os.rename(self._partial, self.path)
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def write(self, rows: pyarrow.Table | pyarrow.RecordBatch) -> None:
        """Appends rows with the columns of `SCHEMA`, or also of `KEYS` and `TRANSACTIONS`, as the first ones have.

        Raises TraceError if a time goes back.
        """
        table = pyarrow.Table.from_batches([rows]) if isinstance(rows, pyarrow.RecordBatch) else rows
        self._schema = self._schema or pyarrow.schema([FIELDS[name] for name in FIELDS if name in table.schema.names])
        table = table.select(self._schema.names).cast(self._schema)
        if not table.num_rows:
            return
        self._check_times(table["time_ns"])
        self._waiting.append(table)
        self.rows += table.num_rows
        self._rows_waiting += table.num_rows
        self._bytes_waiting += table.nbytes
        if self._bytes_waiting >= ROW_GROUP_BYTES or self._rows_waiting >= ROW_GROUP_ROWS:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        table = pyarrow.concat_tables(self._waiting)
        self._waiting, self._rows_waiting, self._bytes_waiting = [], 0, 0
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(
                self._partial / f"part-{self._files:05}.parquet",
                self._schema,
                compression="zstd",
                use_dictionary=["op", "client", "topic", "compression", "group"],
            )
            self._files += 1
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows_of_file += table.num_rows
        if self._rows_of_file >= FILE_ROWS:
            self._close_file()

    def _check_times(self, times: pyarrow.ChunkedArray) -> None:
        values = times.combine_chunks().to_numpy()
        steps_back = (values[1:] < values[:-1]).nonzero()[0]
        at = 0 if values[0] < self._last_ns else int(steps_back[0]) + 1 if len(steps_back) else None
        if at is not None:
            before = self._last_ns if at == 0 else int(values[at - 1])
            raise TraceError(
                f"row {self.rows + at + 1}: time_ns {values[at]} is before {before}, that of the row before"
            )
        self._last_ns = int(values[-1])

    def _close_file(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.add_key_value_metadata({METADATA_KEY: self.info.to_json().encode()})
            writer.close()
            self._rows_of_file = 0


def _serves(found: pyarrow.DataType, expected: pyarrow.DataType) -> bool:
    """Whether values of a type that other programs write can be read as the expected one."""
    if pyarrow.types.is_dictionary(found):
        found = found.value_type
    if pyarrow.types.is_list(expected):
        return bool(pyarrow.types.is_list(found) and pyarrow.types.is_integer(found.value_type))
    kinds = (pyarrow.types.is_integer, pyarrow.types.is_boolean, _is_text)
    return any(kind(found) and kind(expected) for kind in kinds)


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _batches_of(file: Path, schema: pyarrow.Schema, rows: int, before: int) -> Iterator[pyarrow.RecordBatch]:
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            known = opened.schema_arrow.names
            wanted = [name for name in schema.names if name in known]
            first = before
            # Whether a column that is absent has a value depends on `op`.
            needed = wanted if len(wanted) == len(schema.names) or "op" in wanted else [*wanted, "op"]
            for batch in opened.iter_batches(rows, columns=needed):
                columns = [batch[name] if name in known else _absent(name, batch, first) for name in schema.names]
                first += batch.num_rows
                yield pyarrow.RecordBatch.from_arrays(columns, schema.names).cast(schema)
    except (OSError, pyarrow.ArrowException) as problem:
        raise TraceError(f"{file} cannot be read: {reason_of(problem)}") from problem


def _absent(name: str, batch: pyarrow.RecordBatch, first: int) -> pyarrow.Array:
    """The values of a column that the file does not have. `first`: the number of the batch's first row in the trace, from 0."""
    kind = FIELDS[name].type
    if name == "request":  # each row is a request
        return pyarrow.array(range(first, first + batch.num_rows), kind)
    for op, values in ABSENT.items():
        if name in values:
            is_op = pyarrow.compute.equal(batch["op"], op)
            return pyarrow.compute.if_else(is_op, pyarrow.scalar(values[name], kind), pyarrow.scalar(None, kind))
    return pyarrow.nulls(batch.num_rows, kind)


def _check_nulls(file: Path, batch: pyarrow.RecordBatch, required: list[str], first: int) -> None:
    for name in required:
        if batch[name].null_count:
            at = pyarrow.compute.index(batch[name].is_null(), True).as_py()
            raise TraceError(f"{file}: row {first + at}: {name} is null")


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TraceError(f"{path}: no such trace")
    files = sorted(
        file for file in path.iterdir() if file.suffix == ".parquet" and not file.name.startswith((".", "_"))
    )
    if not files:
        raise TraceError(f"{path} is not a trace: the directory has no *.parquet file")
    return files


def reason_of(problem: BaseException) -> str:
    if isinstance(problem, FileNotFoundError):
        return "no such file"
    return shortened((str(problem).splitlines() or [type(problem).__name__])[0], 200)
