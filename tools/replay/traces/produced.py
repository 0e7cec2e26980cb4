"""Rows of a trace from records that were produced, one request for each batch, and the fetches by which consumers read them. Pure."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from tools.replay.traces.schema import FETCH, PRODUCE, SCHEMA

MIN_BYTES, MAX_WAIT_MS, MAX_BYTES = 1, 500, 50 * 1024 * 1024
"""Kafka's defaults of fetch.min.bytes, fetch.max.wait.ms and fetch.max.bytes."""

Numbers = NDArray[numpy.int64]
Column = Any
"""An array, or a chunked one, of pyarrow."""


def produce_rows(
    times: Numbers,
    clients: Column,
    topics: Column,
    key_hashes: Column,
    records: Numbers,
    sizes: Numbers,
    *,
    first_request: int,
    acks: int = -1,
    compression: str = "none",
    partitions: Numbers | None = None,
) -> pyarrow.Table:
    """A produce request for each batch. `partitions`: -1, as for all if None, where `key_hashes` decides."""
    count = len(times)
    return _table(
        count,
        time_ns=times,
        request=numpy.arange(first_request, first_request + count),
        op=_repeated(PRODUCE, count),
        client=clients,
        topic=topics,
        partition=numpy.full(count, -1) if partitions is None else partitions,
        key_hash=key_hashes,
        records=records,
        bytes=sizes,
        compression=_repeated(compression, count),
        acks=_repeated(acks, count),
        transactional=_repeated(False, count),
    )


def with_fetches(
    produces: pyarrow.Table,
    *,
    partitions: int,
    first_request: int,
    consumers: int,
    first_consumer: int = 1,
    prefix: str = "consumer-",
    group: str | None = None,
) -> pyarrow.Table:
    """The produces of topics with so many partitions, and after each one a long poll that returns its batch, at the same time.

    Partition p is fetched by the consumer `first_consumer` + p modulo `consumers`.
    """
    count = produces.num_rows
    turns = pyarrow.compute.coalesce(produces["key_hash"], produces["request"]).to_numpy()
    fixed = produces["partition"].to_numpy()
    partition = numpy.where(fixed >= 0, fixed, turns % partitions)
    names = pyarrow.array([f"{prefix}{first_consumer + number}" for number in range(consumers)], pyarrow.string())
    fetches = _table(
        count,
        time_ns=produces["time_ns"],
        request=numpy.arange(first_request, first_request + count),
        op=_repeated(FETCH, count),
        client=names.take(pyarrow.array(partition % consumers)),
        topic=produces["topic"],
        partition=partition,
        records=produces["records"],
        bytes=produces["bytes"],
        min_bytes=_repeated(MIN_BYTES, count),
        max_wait_ms=_repeated(MAX_WAIT_MS, count),
        max_bytes=_repeated(MAX_BYTES, count),
        group=_repeated(group, count),
    )
    both = pyarrow.concat_tables([produces, fetches]).combine_chunks()
    return both.take(numpy.arange(2 * count).reshape(2, count).T.ravel())


def _table(count: int, **columns: Any) -> pyarrow.Table:
    """Columns that are not given are null."""
    arrays = []
    for column in SCHEMA:
        values = columns.get(column.name)
        if values is None:
            values = pyarrow.nulls(count, column.type)
        arrays.append((pyarrow.array(values) if isinstance(values, numpy.ndarray) else values).cast(column.type))
    return pyarrow.table(arrays, schema=SCHEMA)


def _repeated(value: Any, count: int) -> pyarrow.Array:
    return pyarrow.nulls(count) if value is None else pyarrow.repeat(value, count)
