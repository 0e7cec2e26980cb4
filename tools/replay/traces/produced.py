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
    gap_ns: int = 0,
) -> pyarrow.Table:
    """The produces of topics with so many partitions, and after each one a long poll that returns its batch, at the same time.

    Partition p is fetched by the consumer `first_consumer` + p modulo `consumers`. With a `gap_ns`, which needs produces of one topic in
    the order of their times, a partition is fetched once in each such time, at its last batch in it, for all of them.
    """
    count = produces.num_rows
    turns = pyarrow.compute.coalesce(produces["key_hash"], produces["request"]).to_numpy()
    fixed = produces["partition"].to_numpy()
    partition = numpy.where(fixed >= 0, fixed, turns % partitions)
    names = pyarrow.array([f"{prefix}{first_consumer + number}" for number in range(consumers)], pyarrow.string())
    lasts, fetch_of = _fetched_together(produces["time_ns"].to_numpy(), partition, gap_ns)
    fetched = len(lasts)
    fetches = _table(
        fetched,
        time_ns=produces["time_ns"].take(pyarrow.array(lasts)),
        request=numpy.arange(first_request, first_request + fetched),
        op=_repeated(FETCH, fetched),
        client=names.take(pyarrow.array(partition[lasts] % consumers)),
        topic=produces["topic"].take(pyarrow.array(lasts)),
        partition=partition[lasts],
        records=_sums(produces["records"], fetch_of, fetched),
        bytes=_sums(produces["bytes"], fetch_of, fetched),
        min_bytes=_repeated(MIN_BYTES, fetched),
        max_wait_ms=_repeated(MAX_WAIT_MS, fetched),
        max_bytes=_repeated(MAX_BYTES, fetched),
        group=_repeated(group, fetched),
    )
    both = pyarrow.concat_tables([produces, fetches]).combine_chunks()
    return both.take(numpy.argsort(numpy.concatenate([numpy.arange(count), lasts]), kind="stable"))


def _fetched_together(times: Numbers, partitions: Numbers, gap_ns: int) -> tuple[Numbers, Numbers]:
    """For each fetch the number of its last produce, in their order; and for each produce the number of its fetch."""
    count = len(times)
    if gap_ns == 0:
        return numpy.arange(count), numpy.arange(count)
    together = (times // gap_ns) * (partitions.max(initial=0) + 1) + partitions
    _, from_end, place = numpy.unique(together[::-1], return_index=True, return_inverse=True)
    lasts = count - 1 - from_end
    order = numpy.argsort(lasts)
    number = numpy.empty_like(order)
    number[order] = numpy.arange(len(order))
    return lasts[order], number[place[::-1]]


def _sums(column: Column, fetch_of: Numbers, fetched: int) -> Numbers:
    sums = numpy.zeros(fetched, numpy.int64)
    numpy.add.at(sums, fetch_of, column.to_numpy())
    return sums


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
