"""`ottla replay trace import table`: a trace from tables of events, as a Spark job (RPL-5).

1. Each event becomes a row of `EVENTS`: its time, client, topic, hash of its key and size. The rest is dropped. A file is a task.
2. Each event becomes a batch, or events that lie close together do, as a producer with linger.ms sends them (`linger.py`).
3. Spark sorts the batches by time. Each becomes a produce; with consumers, it is followed by the fetch that returns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute as compute
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from protocol.kafka.record_batch import HEADER_SIZE
from protocol.plain_text import shortened
from protocol.topic_names import is_valid_topic_name
from tools.replay.run.spark_process import LOCAL, SparkSettings
from tools.replay.traces.batch_sizes import body_sizes, single_batch_sizes
from tools.replay.traces.event_times import BadTime, times_ns
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.linger import gather
from tools.replay.traces.ordering import runs_directory
from tools.replay.traces.produced import produce_rows, with_fetches
from tools.replay.traces.schema import TraceError, TraceInfo, TraceWriter
from tools.replay.traces.spark_import import columns, import_session, kept, mapped, sorted_batches
from tools.replay.traces.table_files import Rows, Wanted, rows_of

CLIENT = "producer-1"
EVENTS = columns(
    "time_ns:int64 client:string topic:string partition:int32 key_hash:int64 records:int64 bytes:int64 body:int64 file:int64 row:int64 "
    "unused:string"
)
"""`time_ns`: since 1970 UTC. `partition`: -1 if the key decides. `bytes`: of a batch of its own; `body`: see `batch_sizes.body_sizes`.
`unused`: the name of a column, in the place of an event."""


@dataclass(frozen=True, slots=True)
class TableImport:
    """How to read the tables. A column is given by its name. Either `topic` or `topic_column` is given."""

    time_column: str
    time_unit: str | None = None
    time_zone: str = "UTC"
    key_column: str | None = None
    value_columns: Sequence[str] = ()
    """The columns of a value that is a JSON object; empty: all."""
    raw_value_column: str | None = None
    """The column that is the value, as it is."""
    bytes_column: str | None = None
    """The size of the value; with a `records_column`, of the batch."""
    records_column: str | None = None
    """The records of a row, which is a batch then. Needs a `bytes_column`."""
    partition_column: str | None = None
    topic: str | None = None
    topic_column: str | None = None
    client_column: str | None = None
    partitions: int | None = None
    partitioner: str = "murmur2"
    acks: int = -1
    compression: str = "none"
    compression_ratio: float = 1.0
    """The size of records before compression, divided by that after it. It is not measured: values are dropped."""
    consumers: int = 0
    """Needs `partitions`."""
    group: str | None = None
    batch_ms: int = 0
    """Needs `partitions`."""
    batch_bytes: int = 16384

    @property
    def columns(self) -> Wanted:
        size = self.bytes_column or self.raw_value_column
        named = (
            *(self.time_column, self.key_column, self.topic_column, self.client_column),
            *(self.partition_column, self.records_column, size),
        )
        values = self.value_columns if size is None else [size]
        return Wanted(list(dict.fromkeys(name for name in named if name is not None)), values)


def import_table(
    files: Sequence[Path], out: Path, options: TableImport, spark: SparkSettings = LOCAL
) -> tuple[int, int, list[str]]:
    """Writes the trace and returns (events, produce requests, columns that were not used).

    Raises TraceError, with the file, row and column that is wrong.
    """
    for file in files:
        if not file.exists():  # said before Spark starts, which takes seconds
            raise TraceError(f"{file.absolute()}: no such file")
    names = ", ".join(file.name for file in files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
    with (
        TraceWriter(out, TraceInfo(0, f"imported from {names}")) as writer,
        runs_directory(out) as scratch,
        import_session(scratch, spark) as session,
    ):
        tables = session.createDataFrame(
            [(at, str(file.absolute())) for at, file in enumerate(files)], "file bigint, path string"
        )
        read = mapped(tables.repartition(len(files)), partial(_read, options), EVENTS)
        events = kept(read, scratch / "events")
        unused = sorted(row[0] for row in events.where("unused IS NOT null").select("unused").distinct().collect())
        events = events.where("unused IS null")
        ((count, start),) = events.selectExpr("count(*)", "min(time_ns)").collect()
        if not count:
            raise TraceError(f"{names}: no rows, so {out} was not written")
        batches = gathered(events, options) if options.batch_ms else events
        requests = 0
        topics: set[str] = set()
        for batch in sorted_batches(batches, scratch / "sorted", ("time_ns", "file", "row")):
            topics.update(batch["topic"].unique().to_pylist())
            _write(writer, batch, start, requests, count, options)
            requests += batch.num_rows
        known = {} if options.partitions is None else dict.fromkeys(sorted(topics), options.partitions)
        writer.info = TraceInfo(start, writer.info.source, known)
    return count, requests, unused


def gathered(events: DataFrame, options: TableImport) -> DataFrame:
    """The batches of a producer with linger.ms and batch.size."""
    by_key = events.withColumn(
        "partition",
        sql.expr(f"IF(partition = -1, coalesce(CAST(key_hash % {options.partitions} AS INT), -1), partition)"),
    )
    owner = ("client", "topic", "partition")
    in_order = by_key.repartition(*owner).sortWithinPartitions(*owner, "time_ns", "file", "row")
    return mapped(in_order, partial(gather, options.batch_ms, options.batch_bytes), EVENTS)


def _read(options: TableImport, tables: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    for table in tables:
        for number, path in zip(table["file"].to_pylist(), table["path"].to_pylist(), strict=True):
            wanted = options.columns
            for rows in rows_of(Path(path), wanted):
                found = _events(rows, options) | {
                    "file": pyarrow.repeat(number, len(rows.numbers)),
                    "row": pyarrow.array(rows.numbers),
                    "unused": pyarrow.nulls(len(rows.numbers)),
                }
                yield pyarrow.record_batch([found[column.name].cast(column.type) for column in EVENTS], schema=EVENTS)
            yield pyarrow.RecordBatch.from_pylist([{"unused": name} for name in sorted(wanted.unused)], EVENTS)


def _events(rows: Rows, options: TableImport) -> dict[str, pyarrow.Array]:
    """Raises TraceError."""
    count = len(rows.numbers)
    try:
        times = times_ns(rows.columns[options.time_column], options.time_unit, options.time_zone)
    except BadTime as problem:
        raise rows.error(problem.row, options.time_column, problem.reason) from None
    key_sizes = numpy.full(count, -1, numpy.int64)
    hashes = pyarrow.nulls(count, pyarrow.int64())
    if options.key_column is not None:
        keys = _texts(rows, options.key_column)
        key_sizes = compute.fill_null(compute.binary_length(keys).cast(pyarrow.int64()), -1).to_numpy()
        hashes = key_hashes(keys, options.partitioner)
    topics = _named(rows, options.topic_column, options.topic or "")
    if options.topic_column is not None:
        for topic in compute.unique(topics).to_pylist():
            if not is_valid_topic_name(topic):
                at = compute.index(topics, topic).as_py()
                raise rows.error(
                    at, options.topic_column, f"{shortened(topic, 60)!r} is not a topic name: use a-z A-Z 0-9 . _ -"
                )
    if options.records_column is not None:
        bodies = sizes = _numbers(rows, options.bytes_column, HEADER_SIZE, 0)
    else:
        bodies = body_sizes(key_sizes, _value_sizes(rows, options))
        sizes = single_batch_sizes(bodies)
    return {
        "time_ns": pyarrow.array(times),
        "client": _named(rows, options.client_column, CLIENT),
        "topic": topics,
        "partition": pyarrow.array(_numbers(rows, options.partition_column, 0, -1)),
        "key_hash": hashes,
        "records": pyarrow.array(_numbers(rows, options.records_column, 1, 1)),
        "bytes": pyarrow.array(sizes),
        "body": pyarrow.array(bodies),
    }


def _value_sizes(rows: Rows, options: TableImport) -> NDArray[numpy.int64]:
    if options.bytes_column is not None:
        return _numbers(rows, options.bytes_column, 0, 0)
    if options.raw_value_column is not None:
        sizes = compute.binary_length(_texts(rows, options.raw_value_column)).cast(pyarrow.int64())
        return numpy.asarray(compute.fill_null(sizes, -1).to_numpy())
    return rows.value_sizes


def _numbers(rows: Rows, column: str | None, least: int, default: int) -> NDArray[numpy.int64]:
    """The whole numbers of a column, `default` without one. Raises TraceError for a null, a fraction, or a number below `least`."""
    if column is None:
        return numpy.full(len(rows.numbers), default, numpy.int64)
    try:
        values = rows.columns[column].cast(pyarrow.int64())
    except pyarrow.ArrowException:
        raise rows.error(0, column, "is not a column of whole numbers") from None
    if values.null_count:
        raise rows.error(compute.index(values.is_null(), True).as_py(), column, "is null")
    numbers: NDArray[numpy.int64] = values.to_numpy(zero_copy_only=False)
    if (numbers < least).any():
        at = int((numbers < least).argmax())
        raise rows.error(at, column, f"{numbers[at]} is below {least}")
    return numbers


def _texts(rows: Rows, column: str) -> pyarrow.Array:
    """Texts and bytes as they are, other values as text. Raises TraceError."""
    values = rows.columns[column]
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pyarrow.types.is_large_binary(values.type) or pyarrow.types.is_binary(values.type):
        return values
    try:
        return values.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise rows.error(0, column, f"is of type {values.type}, which cannot be a key, a topic or a client") from None


def _named(rows: Rows, column: str | None, default: str) -> pyarrow.Array:
    """The texts of a column without nulls. Raises TraceError."""
    if column is None:
        return pyarrow.repeat(pyarrow.scalar(default, pyarrow.string()), len(rows.numbers))
    values = _texts(rows, column)
    if values.null_count:
        raise rows.error(compute.index(values.is_null(), True).as_py(), column, "is null")
    try:
        return values.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise rows.error(0, column, "has bytes that are not UTF-8") from None


def _write(
    writer: TraceWriter, batches: pyarrow.RecordBatch, start: int, first_request: int, events: int, options: TableImport
) -> None:
    """Writes a produce for each batch, and its fetch. Fetches have request numbers from `events` on."""
    sizes = batches["bytes"].to_numpy()
    if options.compression_ratio != 1:
        sizes = HEADER_SIZE + numpy.ceil((sizes - HEADER_SIZE) / options.compression_ratio).astype(numpy.int64)
    produces = produce_rows(
        batches["time_ns"].to_numpy() - start,
        batches["client"],
        batches["topic"],
        batches["key_hash"],
        batches["records"].to_numpy(),
        sizes,
        first_request=first_request,
        acks=options.acks,
        compression=options.compression,
        partitions=batches["partition"].to_numpy(),
    )
    if options.consumers and options.partitions is not None:
        prefix = f"consumer-{options.group}-" if options.group else "consumer-"
        writer.write(
            with_fetches(
                produces,
                partitions=options.partitions,
                first_request=events + first_request,
                consumers=options.consumers,
                prefix=prefix,
                group=options.group,
            )
        )
    else:
        writer.write(produces)
