"""`ottla replay trace merge`: several traces as one, in the order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.compute

from tools.replay.traces.ordering import merged
from tools.replay.traces.schema import FIELDS, Trace, TraceInfo, TraceWriter


def merge(sources: Sequence[Path], out: Path, *, align: bool = False, prefix_clients: bool = False) -> int:
    """Writes the rows of all sources and returns their number. Raises TraceError.

    Rows are ordered by wall time; with `align`, by the time since the start of their trace. Request numbers stay unique: those of the
    second trace follow the highest of the first. If the traces disagree about the partitions of a topic, the highest number is right,
    because a topic only grows. `prefix_clients` puts the number of the trace before each client id: `2-client`.
    """
    traces = [Trace(source) for source in sources]
    start = traces[0].info.start if align else min(trace.info.start for trace in traces)
    topics: dict[str, int] = {}
    for trace in traces:
        for topic, count in trace.info.topics.items():
            topics[topic] = max(count, topics.get(topic, 0))
    info = TraceInfo(
        start,
        "merged from " + "; ".join(dict.fromkeys(trace.info.source for trace in traces)),
        topics,
        sum(trace.info.dropped for trace in traces),
    )
    names = [name for name in FIELDS if any(name in trace.names for trace in traces)]
    streams = []
    free = 0
    for number, trace in enumerate(traces, 1):
        first, last = request_range(trace)
        later_ns = 0 if align else trace.info.start - start
        streams.append(_moved(trace, names, later_ns, free - first, f"{number}-" if prefix_clients else ""))
        free += last - first + 1
    with TraceWriter(out, info) as writer:
        for rows in merged(streams):
            writer.write(rows)
    return writer.rows


def request_range(trace: Trace) -> tuple[int, int]:
    """The lowest and the highest request number; nulls do not count. Raises TraceError."""
    ranges = [
        pyarrow.compute.min_max(batch["request"]).as_py()
        for batch in trace.batches(["request"], nulls=True)
        if batch["request"].null_count < batch.num_rows
    ]
    return min((each["min"] for each in ranges), default=0), max((each["max"] for each in ranges), default=0)


def _moved(trace: Trace, names: list[str], later_ns: int, requests: int, prefix: str) -> Iterator[pyarrow.RecordBatch]:
    """The rows with this added to their times, to their request numbers, and put before their client ids."""
    for batch in trace.batches(names):
        moved = {
            "time_ns": pyarrow.compute.add(batch["time_ns"], later_ns),
            "request": pyarrow.compute.add(batch["request"], requests),
            "client": pyarrow.compute.binary_join_element_wise(prefix, batch["client"], "")
            if prefix
            else batch["client"],
        }
        columns = [moved.get(name, batch[name]) for name in batch.schema.names]
        yield pyarrow.record_batch(columns, schema=batch.schema)
