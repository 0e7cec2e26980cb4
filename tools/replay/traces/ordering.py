"""Sorts rows by a column of times (int64) in bounded memory: merges sorted streams, and sorts a stream by way of files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import numpy
import pyarrow
import pyarrow.ipc

TIME = "time_ns"
RUN_ROWS = 512 * 1024
RUN_BYTES = 256 * 1024 * 1024
"""Limits of what is sorted in memory: rows with many keys are large."""
OPEN_ROWS = 2 * 1024 * 1024
"""Rows that a merge of runs has in memory, of all runs together."""
CHUNK_ROWS = 1024
CHUNK_BYTES = 256 * 1024
"""Limits of what is read of a run together; `_run` reads one or more chunks at once."""

Rows: TypeAlias = pyarrow.RecordBatch | pyarrow.Table


def merged(streams: Sequence[Iterable[Rows]]) -> Iterator[pyarrow.Table]:
    """The rows of sorted streams of one schema, sorted. Of rows with the same time, those of an earlier stream come first."""
    heads = [head for head in (_Head(stream) for stream in streams) if head.fill()]
    while heads:
        bound = min(head.last for head in heads)
        # Only this stream and those before it may give their rows at `bound`: a stream before it has no more of them,
        # and the rows of a stream behind it come after rows that this stream has not read yet.
        ending = next(at for at, head in enumerate(heads) if head.last == bound)
        parts = [head.take(bound, "right" if at <= ending else "left") for at, head in enumerate(heads)]
        yield sorted_rows(pyarrow.concat_tables(_table(part) for part in parts if part.num_rows))
        heads = [head for head in heads if head.rows.num_rows or head.fill()]


class _Head:
    """The rows of a stream that are read and not taken."""

    rows: Rows
    last: int

    def __init__(self, stream: Iterable[Rows]) -> None:
        self._stream = iter(stream)

    def fill(self) -> bool:
        """Reads the next rows. False at the end of the stream."""
        for rows in self._stream:
            if rows.num_rows:
                self.rows = rows
                self._times = rows[TIME].to_numpy()
                self.last = int(self._times[-1])
                return True
        return False

    def take(self, bound: int, side: Literal["left", "right"]) -> Rows:
        """The rows before `bound`, and with `right` those at it."""
        count = int(numpy.searchsorted(self._times, bound, side))
        taken, self.rows, self._times = self.rows.slice(0, count), self.rows.slice(count), self._times[count:]
        return taken


def sorted_rows(table: pyarrow.Table) -> pyarrow.Table:
    """The table sorted by time. Rows with the same time keep their order."""
    times = table[TIME].to_numpy()
    if (times[1:] >= times[:-1]).all():
        return table
    return table.combine_chunks().take(numpy.argsort(times, kind="stable"))


def sorted_stream(streamed: Iterable[Rows], directory: Path, run_rows: int = RUN_ROWS) -> Iterator[pyarrow.Table]:
    """Reads all rows, then returns them sorted by time; rows with the same time keep their order.

    More than `run_rows` of them, or than RUN_BYTES, go through files in `directory`, which must stay until the last row is read.
    """
    runs: list[Path] = []
    waiting: list[pyarrow.Table] = []
    count = size = 0
    for rows in streamed:
        waiting.append(_table(rows))
        count += rows.num_rows
        size += rows.nbytes
        if count >= run_rows or size >= RUN_BYTES:
            runs.append(directory / f"run-{len(runs):06}.arrow")
            _write_run(runs[-1], sorted_rows(pyarrow.concat_tables(waiting)))
            waiting, count, size = [], 0, 0
    rest = [sorted_rows(pyarrow.concat_tables(waiting)).to_batches(max_chunksize=64 * 1024)] if waiting else []
    rows_at_once = max(CHUNK_ROWS, min(64 * 1024, OPEN_ROWS // max(1, len(runs))))
    return merged([*(_run(run, rows_at_once) for run in runs), *rest])


def _write_run(file: Path, rows: pyarrow.Table) -> None:
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_file(sink, rows.schema, options=options) as out:
        chunk = min(CHUNK_ROWS, max(CHUNK_BYTES * rows.num_rows // max(rows.nbytes, 1), 1))
        out.write_table(rows.combine_chunks(), max_chunksize=chunk)


def _run(file: Path, rows: int) -> Iterator[pyarrow.Table]:
    """Reads a run, about `rows` at a time. The file is open only while it is read, so there may be many runs."""
    at = 0
    while True:
        with pyarrow.OSFile(str(file), "rb") as source, pyarrow.ipc.open_file(source) as opened:
            stop = min(at + max(1, rows // CHUNK_ROWS), opened.num_record_batches)
            chunks = [opened.get_batch(number) for number in range(at, stop)]
        if not chunks:
            return
        at = stop
        yield pyarrow.Table.from_batches(chunks).combine_chunks()


def _table(rows: Rows) -> pyarrow.Table:
    return pyarrow.Table.from_batches([rows]) if isinstance(rows, pyarrow.RecordBatch) else rows


@contextmanager
def runs_directory(out: Path) -> Iterator[Path]:
    """An empty directory next to `out`, which is removed in the end."""
    directory = out.with_name(f".{out.name}.{os.getpid()}.runs")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def in_whole_times(streamed: Iterable[Rows]) -> Iterator[pyarrow.Table]:
    """The same rows, cut only where the time changes. So all rows of a request, which has one time, are together.

    The rows of one time are in memory at once. Rows need not be sorted.
    """
    waiting: list[pyarrow.Table] = []
    last = None
    for rows in streamed:
        if not rows.num_rows:
            continue
        numbers = rows[TIME].fill_null(-1).to_numpy()
        changes = numpy.flatnonzero(numbers[1:] != numbers[:-1])
        if len(changes):
            cut = int(changes[-1]) + 1
            yield pyarrow.concat_tables([*waiting, _table(rows.slice(0, cut))])
            waiting = [_table(rows.slice(cut))]
        elif waiting and int(numbers[0]) != last:
            yield pyarrow.concat_tables(waiting)
            waiting = [_table(rows)]
        else:
            waiting.append(_table(rows))
        last = int(numbers[-1])
    if waiting:
        yield pyarrow.concat_tables(waiting)
