"""The files of all brokers, merged into one trace by time (RPL-5). Memory is bounded, however long the recording is.

1. Each file is read block by block. Its times become wall times by the header's pair of clocks.
2. All rows are sorted by time, by way of files (`traces/ordering.py`). Rows of one time keep their order.
3. Requests get their numbers, fetches their groups, and addresses are left out.

Times of different brokers are as far apart as their wall clocks are wrong. If that is more than a produce takes, a batch may be counted
to the transaction before or after its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from protocol.kafka.record_batch import COMPRESSION_MASK, TRANSACTIONAL_BIT
from protocol.recording import (
    ABORT,
    COMMIT,
    END,
    FETCH,
    FETCH_COMMITTED,
    FETCH_HEAD,
    INIT,
    MEMBER,
    OF_FETCHED,
    OF_PRODUCED,
    PRODUCE,
    PRODUCE_HEAD,
    PRODUCE_IN_TRANSACTION,
    TRANSACTIONAL_HEAD,
    Counts,
    NotARecording,
    RecordingReader,
)
from tools.replay.recording.group_members import GroupMembers
from tools.replay.traces import schema
from tools.replay.traces.ordering import sorted_stream
from tools.replay.traces.schema import COMPRESSIONS, SCHEMA, TRANSACTIONS, TraceError, TraceInfo, TraceWriter

BLOCK_ROWS = 32 * 1024
OF_END = MappingProxyType({COMMIT: schema.COMMIT, ABORT: schema.ABORT, INIT: "init"})
"""How a transaction ended -> the op. `init` is an abort if a transaction was open."""
_REQUESTS_OF_FILE = 2**40

_ROWS = pyarrow.schema(
    [
        pyarrow.field("time_ns", pyarrow.int64()),
        pyarrow.field("key", pyarrow.int64()),
        pyarrow.field("address", pyarrow.string()),
        *(column for column in SCHEMA if column.name not in ("time_ns", "request", "key_hash", "group")),
        *TRANSACTIONS,
    ]
)
"""A row before the merge: `time_ns` is since 1970, `key` is a number that only the rows of one request have."""


@dataclass
class FileSummary:
    """What one file of a broker had."""

    broker: int
    counts: Counts = field(default_factory=Counts)
    rows: int = 0
    is_cut: bool = False


@dataclass
class Summary:
    """What was merged, for the report. `requests`, `records` and `bytes` are by op."""

    files: list[FileSummary] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    clients: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    @property
    def counts(self) -> Counts:
        return Counts(*(sum(numbers) for numbers in zip(*(file.counts for file in self.files), strict=True)))


def merge(
    files: Sequence[Path],
    out: Path,
    directory: Path,
    source: str,
    partitions_of: Mapping[str, int],
    tell: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Writes the trace `out`; `directory` takes files of the sort. `tell` gets lines of progress.

    Raises TraceError if a file is damaged beyond its end, if there are no rows, or if something is at `out` already.
    """
    summary = Summary()
    members = GroupMembers()
    with TraceWriter(out, TraceInfo(0, source)) as writer:
        numbers, open_ids = _RequestNumbers(), dict[str, str]()
        start = 0
        # All files are read before the first table comes, and so all members of groups are known.
        for read in sorted_stream(_read_all(files, members, summary, tell), directory):
            table = _with_ends(read, open_ids)
            if not table.num_rows:
                continue
            if not writer.rows:
                start = table["time_ns"][0].as_py()
                tell(f"writing {out}")
            rows = _finished(table, start, numbers, members)
            writer.write(rows)
            _count(rows, summary)
        summary.rows = writer.rows
        summary.topics.discard("")
        topics = {topic: count for topic, count in partitions_of.items() if topic in summary.topics}
        writer.info = TraceInfo(start, source, topics, summary.counts.dropped)
    return summary


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_all(
    files: Sequence[Path], members: GroupMembers, summary: Summary, tell: Callable[[str], None]
) -> Iterator[pyarrow.Table]:
    for number, file in enumerate(files):
        tell(f"reading {file.name}")
        yield from _read(file, number, members, summary)


def _read(file: Path, number: int, members: GroupMembers, summary: Summary) -> Iterator[pyarrow.Table]:
    with open(file, "rb") as opened:
        try:
            reader = RecordingReader(opened)
        except NotARecording as problem:
            raise TraceError(f"{file.name} is not a recording: {problem}") from None
        of_file = FileSummary(reader.header.broker)
        summary.files.append(of_file)
        columns = _Columns()
        entries = 0
        wall_ns, monotonic_s = reader.header.wall_ns, reader.header.monotonic_s
        for block in reader.blocks():
            for entry in block:
                time_ns = None
                with suppress(TypeError, IndexError, ValueError, OverflowError):
                    time_ns = wall_ns + round((entry[1] - monotonic_s) * 1e9)
                if time_ns is None or not columns.add(entry, time_ns, number * _REQUESTS_OF_FILE + entries, members):
                    raise TraceError(f"{file.name}: entry {entries + 1} is not one of a recording")
                entries += 1
            if len(columns) >= BLOCK_ROWS:
                of_file.rows += len(columns)
                yield columns.take()
        of_file.rows += len(columns)
        if len(columns):
            yield columns.take()
        of_file.counts, of_file.is_cut = reader.counts, reader.is_cut


class _Columns:
    """Rows that were read, column by column, in the order of `_ROWS`."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, entry: Sequence[Any], time_ns: int, key: int, members: GroupMembers) -> bool:
        """False if the entry does not have the shape of one."""
        rows = self._rows
        try:
            match entry[0]:
                case n if n in (PRODUCE, PRODUCE_IN_TRANSACTION):
                    _, _, client, address, acks = entry[:PRODUCE_HEAD]
                    transactional_id = entry[PRODUCE_HEAD] if n == PRODUCE_IN_TRANSACTION else None
                    flat = entry[PRODUCE_HEAD if n == PRODUCE else TRANSACTIONAL_HEAD :]
                    for topic, partition, records, size, attributes in _groups(flat, OF_PRODUCED):
                        compression = COMPRESSIONS[attributes & COMPRESSION_MASK]
                        is_transactional = bool(attributes & TRANSACTIONAL_BIT)
                        head = (time_ns, key, address, schema.PRODUCE, client, topic, partition, records, size)
                        of_fetch = (None,) * 5
                        rows.append((*head, compression, acks, is_transactional, *of_fetch, transactional_id, None))
                case n if n in (FETCH, FETCH_COMMITTED):
                    _, _, client, address, min_bytes, max_wait_ms, max_bytes = entry[:FETCH_HEAD]
                    flat = entry[FETCH_HEAD:]
                    for topic, partition, offset, records, size, high_watermark in _groups(flat, OF_FETCHED):
                        behind = max(high_watermark - offset, 0) if min(offset, high_watermark) >= 0 else None
                        head = (time_ns, key, address, schema.FETCH, client, topic, partition, records, size)
                        at = offset if offset >= 0 else None
                        asked = (min_bytes, max_wait_ms, max_bytes, at, behind)
                        rows.append((*head, None, None, None, *asked, None, n == FETCH_COMMITTED))
                case n if n == MEMBER:
                    _, _, client, address, group, *topics = entry
                    members.add(client, address, group, topics)
                case n if n == END:
                    _, _, client, address, transactional_id, how = entry
                    head = (time_ns, key, address, OF_END[how], client, "", 0, 0, 0)
                    rows.append((*head, *(None,) * 8, transactional_id, None))
                case _:
                    return False
        except (TypeError, ValueError, LookupError):
            return False
        return True

    def take(self) -> pyarrow.Table:
        """Raises TraceError for a value that its column cannot have."""
        rows, self._rows = self._rows, []
        try:
            columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(_ROWS)
            arrays = [pyarrow.array(column, kind.type) for column, kind in zip(columns, _ROWS, strict=True)]
        except pyarrow.ArrowException as problem:
            raise TraceError(f"a recording has an impossible value: {problem}") from None
        return pyarrow.Table.from_arrays(arrays, schema=_ROWS)


def _groups(flat: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return iter(zip(*(flat[at::size] for at in range(size)), strict=True))


# -- after the sort ---------------------------------------------------------------------------------------------------


class _RequestNumbers:
    """Numbers requests in the order of the trace. The rows of a request follow each other, perhaps into the next table."""

    def __init__(self) -> None:
        self._latest = -1
        self._latest_key = -1

    def of(self, keys: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        before = numpy.concatenate(([self._latest_key], keys[:-1]))
        numbers = self._latest + numpy.cumsum(keys != before)
        self._latest, self._latest_key = int(numbers[-1]), int(keys[-1])
        return numbers


def _with_ends(table: pyarrow.Table, open_ids: dict[str, str]) -> pyarrow.Table:
    """Without the ends of transactions that have no batch: an end that was sent again, an `init`, one of a topic that is not recorded.

    `open_ids`: transactional id -> client, of the transactions that are open; they change.
    """
    ids = table["transactional_id"]
    if ids.null_count == table.num_rows:
        return table
    ops, clients = table["op"].to_pylist(), table["client"].to_pylist()
    is_kept = [True] * table.num_rows
    for at, name in enumerate(ids.to_pylist()):
        if name is None:
            continue
        if ops[at] == schema.PRODUCE:
            open_ids[name] = clients[at]
        elif (client := open_ids.pop(name, None)) is None:
            is_kept[at] = False
        elif ops[at] not in schema.ENDS:
            ops[at], clients[at] = schema.ABORT, client
    for column, values in (("op", ops), ("client", clients)):
        table = table.set_column(table.schema.get_field_index(column), _ROWS.field(column), [values])
    return table.filter(pyarrow.array(is_kept))


def _finished(table: pyarrow.Table, start: int, numbers: _RequestNumbers, members: GroupMembers) -> pyarrow.Table:
    """The rows as the trace has them."""
    groups = [
        members.group_of(client, address, topic) if op == schema.FETCH else None
        for client, address, topic, op in zip(
            *(table[name].to_pylist() for name in ("client", "address", "topic", "op")), strict=True
        )
    ]
    count = table.num_rows
    made = {
        "time_ns": pyarrow.array(table["time_ns"].to_numpy() - start, pyarrow.int64()),
        "request": pyarrow.array(numbers.of(table["key"].to_numpy()), pyarrow.int64()),
        "key_hash": pyarrow.nulls(count, pyarrow.int64()),
        "group": pyarrow.array(groups, pyarrow.string()),
    }
    columns = [*SCHEMA, *TRANSACTIONS]
    arrays = [made[column.name] if column.name in made else table[column.name].combine_chunks() for column in columns]
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(columns))


def _count(rows: pyarrow.Table, summary: Summary) -> None:
    summary.seconds = rows["time_ns"][-1].as_py() / 1e9
    for op in rows["op"].unique().to_pylist():
        of_op = rows.filter(pyarrow.compute.equal(rows["op"], op))
        summary.requests[op] += pyarrow.compute.count_distinct(of_op["request"]).as_py()
        summary.records[op] += pyarrow.compute.sum(of_op["records"]).as_py() or 0
        summary.bytes[op] += pyarrow.compute.sum(of_op["bytes"]).as_py() or 0
    for name, found in (("client", summary.clients), ("group", summary.groups), ("topic", summary.topics)):
        found.update(value for value in rows[name].unique().to_pylist() if value is not None)
