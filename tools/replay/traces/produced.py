"""Rows of a trace from records that were produced, one request for each batch, and the fetches by which consumers read them. Pure."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from tools.replay.traces.schema import ABSENT, FETCH, PRODUCE, SCHEMA

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
        op=PRODUCE,
        client=clients,
        topic=topics,
        partition=numpy.full(count, -1) if partitions is None else partitions,
        key_hash=key_hashes,
        records=records,
        bytes=sizes,
        compression=compression,
        acks=acks,
        transactional=False,
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
    together = numpy.arange(count)
    if gap_ns:
        together = produces["time_ns"].to_numpy() // gap_ns * (partition.max(initial=0) + 1) + partition
    sums = pyarrow.table(
        {"fetch": together, "last": numpy.arange(count), "records": produces["records"], "bytes": produces["bytes"]}
    )
    sums = sums.group_by("fetch").aggregate([("last", "max"), ("records", "sum"), ("bytes", "sum")]).sort_by("last_max")
    lasts = sums["last_max"].to_numpy()
    fetched = len(lasts)
    fetches = _table(
        fetched,
        time_ns=produces["time_ns"].take(pyarrow.array(lasts)),
        request=numpy.arange(first_request, first_request + fetched),
        op=FETCH,
        client=names.take(pyarrow.array(partition[lasts] % consumers)),
        topic=produces["topic"].take(pyarrow.array(lasts)),
        partition=partition[lasts],
        records=sums["records_sum"],
        bytes=sums["bytes_sum"],
        group=group,
        **ABSENT[FETCH],
    )
    both = pyarrow.concat_tables([produces, fetches]).combine_chunks()
    return both.take(numpy.argsort(numpy.concatenate([numpy.arange(count), lasts]), kind="stable"))


def _table(count: int, **columns: Any) -> pyarrow.Table:
    """A value that is no column is repeated. Columns that are not given are null."""
    arrays = []
    for column in SCHEMA:
        values = columns.get(column.name)
        if isinstance(values, numpy.ndarray):
            values = pyarrow.array(values)
        elif not isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
            values = pyarrow.nulls(count) if values is None else pyarrow.repeat(values, count)
        arrays.append(values.cast(column.type))
    return pyarrow.table(arrays, schema=SCHEMA)
