"""`ottla replay trace scale`: a trace made faster, larger, for more clients, or for other topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute

from tools.replay.traces.batch_sizes import smallest_batches
from tools.replay.traces.clones import ClientLoad, clones_of, with_clones
from tools.replay.traces.merge import request_range
from tools.replay.traces.ordering import in_whole_times, runs_directory, sorted_stream
from tools.replay.traces.schema import Trace, TraceError, TraceWriter


@dataclass(frozen=True, slots=True)
class Scaling:
    """`copies`: how many times each client is there. `topics`: old name -> new name."""

    speed: float = 1.0
    copies: int = 1
    bytes: float = 1.0
    topics: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0


def scale(source: Path, out: Path, scaling: Scaling) -> int:
    """Writes the scaled trace and returns its number of rows. Raises TraceError, also for a topic that the trace does not have."""
    trace = Trace(source)
    topics: dict[str, int] = {}
    for topic, count in trace.info.topics.items():
        name = scaling.topics.get(topic, topic)
        topics[name] = max(count, topics.get(name, 0))
    unseen = {*scaling.topics} - {*trace.info.topics}
    info = replace(trace.info, topics=topics, source=f"scaled from {trace.info.source}")
    with ExitStack() as stack:
        writer = stack.enter_context(TraceWriter(out, info))
        rows_at_once = max(1024, 64 * 1024 // scaling.copies)
        batches = _noting_topics(trace.batches(rows=rows_at_once), unseen)
        scaled: Iterable[pyarrow.RecordBatch | pyarrow.Table]
        if scaling.copies == 1:
            scaled = (scaled_rows(batch, scaling) for batch in batches)
        else:
            first, last = request_range(trace)
            clones = clones_of(client_loads(trace), scaling.copies, last - first + 1, scaling.seed)
            directory = stack.enter_context(runs_directory(out))
            scaled = sorted_stream((scaled_rows(with_clones(batch, clones), scaling) for batch in batches), directory)
        for rows in scaled:
            writer.write(rows)
        if unseen:
            raise TraceError(f"{source} has no topic {min(unseen)}, so {out} was not written")
    return writer.rows


def scaled_rows(rows: pyarrow.RecordBatch, scaling: Scaling) -> pyarrow.RecordBatch:
    """The rows with other times, sizes and topics. A batch does not become smaller than its records allow."""
    columns = {name: rows[name] for name in rows.schema.names}
    if scaling.speed != 1:
        columns["time_ns"] = pyarrow.array((rows["time_ns"].to_numpy() / scaling.speed).astype(numpy.int64))
    if scaling.bytes != 1:
        sizes = rows["bytes"].to_numpy()
        smallest = numpy.minimum(sizes, smallest_batches(rows["records"].to_numpy().astype(numpy.int64)))
        columns["bytes"] = pyarrow.array(numpy.maximum(numpy.rint(sizes * scaling.bytes).astype(numpy.int64), smallest))
    if scaling.topics:
        topics = rows["topic"].dictionary_encode()
        names = [scaling.topics.get(topic, topic) for topic in topics.dictionary.to_pylist()]
        columns["topic"] = pyarrow.array(names, pyarrow.string()).take(topics.indices)
    return pyarrow.record_batch(list(columns.values()), schema=rows.schema)


def client_loads(trace: Trace) -> dict[str, ClientLoad]:
    """The load of each client. Raises TraceError."""
    loads: dict[str, ClientLoad] = {}
    for table in in_whole_times(trace.batches(["time_ns", "request", "client"])):
        requests = table.group_by(["client", "request"]).aggregate([("time_ns", "min")])
        found = requests.group_by("client").aggregate(
            [("request", "count"), ("time_ns_min", "min"), ("time_ns_min", "max")]
        )
        for row in found.to_pylist():
            before = loads.get(row["client"], ClientLoad(0, row["time_ns_min_min"], 0))
            loads[row["client"]] = ClientLoad(
                before.requests + row["request_count"], before.first_ns, row["time_ns_min_max"]
            )
    return loads


def _noting_topics(batches: Iterable[pyarrow.RecordBatch], unseen: set[str]) -> Iterator[pyarrow.RecordBatch]:
    """The same rows; their topics are removed from `unseen`."""
    for batch in batches:
        if unseen:
            unseen.difference_update(pyarrow.compute.unique(batch["topic"]).to_pylist())
        yield batch
