"""`ottla replay trace cut`: a part of a trace, by time, topic, client and operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.compute

from tools.replay.traces.schema import ENDS, OFFSETS, PRODUCE, Trace, TraceError, TraceWriter


@dataclass(frozen=True, slots=True)
class Part:
    """What to keep: rows from `from_ns` on and before `to_ns` (None: the end). An empty collection keeps all."""

    from_ns: int = 0
    to_ns: int | None = None
    topics: Sequence[str] = ()
    clients: Sequence[str] = ()
    ops: Sequence[str] = ()


def cut(source: Path, out: Path, part: Part) -> int:
    """Writes the part, whose start is `from_ns` after the source's, and returns its number of rows. The ends of transactions, which have no
    topic, stay with every topic; they and the offsets in transactions stay with produces.

    Raises TraceError, also if nothing is left or if a topic, client or operation that was named is not in the part.
    """
    trace = Trace(source)
    topics = {topic: count for topic, count in trace.info.topics.items() if not part.topics or topic in part.topics}
    info = replace(
        trace.info, start=trace.info.start + part.from_ns, topics=topics, source=f"cut of {trace.info.source}"
    )
    named = {"topic": part.topics, "client": part.clients, "op": part.ops}
    missing = {(column, name) for column, names in named.items() for name in names}
    kept = named | {
        "topic": part.topics and [*part.topics, ""],
        "op": [*part.ops, *((*ENDS, OFFSETS) if PRODUCE in part.ops else ())],
    }
    with TraceWriter(out, info) as writer:
        for batch in trace.batches():
            rows = _in_time(batch, part)
            for column, name in tuple(missing):
                if pyarrow.compute.any(pyarrow.compute.equal(rows[column], name)).as_py():
                    missing.discard((column, name))
            for column, names in kept.items():
                if names:
                    rows = rows.filter(pyarrow.compute.is_in(rows[column], pyarrow.array(names, pyarrow.string())))
            times = pyarrow.compute.subtract(rows["time_ns"], part.from_ns)
            writer.write(rows.set_column(0, rows.schema.field(0), times))
            if part.to_ns is not None and batch["time_ns"][-1].as_py() >= part.to_ns:
                break
        if missing:
            column, name = min(missing)
            raise TraceError(f"{source} has no row with {column} {name} in this part, so {out} was not written")
        if not writer.rows:
            raise TraceError(f"{source} has no row in this part, so {out} was not written")
    return writer.rows


def _in_time(batch: pyarrow.RecordBatch, part: Part) -> pyarrow.RecordBatch:
    is_kept = pyarrow.compute.greater_equal(batch["time_ns"], part.from_ns)
    if part.to_ns is not None:
        is_kept = pyarrow.compute.and_(is_kept, pyarrow.compute.less(batch["time_ns"], part.to_ns))
    return batch.filter(is_kept)
