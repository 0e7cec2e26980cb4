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
    OF_OFFSETS,
    OF_PRODUCED,
    OFFSETS,
    OFFSETS_HEAD,
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
from tools.replay.traces.key_hashes import mean_key_size
from tools.replay.traces.ordering import sorted_stream
from tools.replay.traces.schema import COMPRESSIONS, KEYS, SCHEMA, TRANSACTIONS, TraceError, TraceInfo, TraceWriter
from tools.replay.traces.transaction_ends import INIT_OP, with_ends

BLOCK_ROWS = 32 * 1024
BLOCK_KEYS = 4 * 1024 * 1024
OF_END = MappingProxyType({COMMIT: schema.COMMIT, ABORT: schema.ABORT, INIT: INIT_OP})
"""How a transaction ended -> the op."""
_REQUESTS_OF_FILE = 2**40

_ROWS = pyarrow.schema(
    [
        pyarrow.field("time_ns", pyarrow.int64()),
        pyarrow.field("key", pyarrow.int64()),
        pyarrow.field("address", pyarrow.string()),
        *(column for column in SCHEMA if column.name not in ("time_ns", "request", "key_hash")),
        *TRANSACTIONS,
        *KEYS,
    ]
)
"""A row before the merge: `time_ns` is since 1970, `key` is a number that only the rows of one request have, `group` is of offsets."""


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
    keys: Counter[str] = field(default_factory=Counter)
    key_bytes: Counter[str] = field(default_factory=Counter)
    """Topic -> records with keys, and the size of these together."""

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
            table = with_ends(read, open_ids)
            if not table.num_rows:
                continue
            if not writer.rows:
                start = table["time_ns"][0].as_py()
                tell(f"writing {out}")
            rows = _finished(table, start, numbers, members, summary)
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
        rows: list[dict[str, Any]] = []
        entries = keys_before = 0
        wall_ns, monotonic_s = reader.header.wall_ns, reader.header.monotonic_s
        for block in reader.blocks():
            for entry in block:
                try:
                    time_ns = wall_ns + round((entry[1] - monotonic_s) * 1e9)
                    of_all = {"time_ns": time_ns, "key": number * _REQUESTS_OF_FILE + entries}
                    rows += [of_all | row for row in _rows_of(entry, members, summary)]
                except (TypeError, ValueError, LookupError, OverflowError):
                    raise TraceError(f"{file.name}: entry {entries + 1} is not one of a recording") from None
                entries += 1
            if len(rows) >= BLOCK_ROWS or summary.keys.total() - keys_before >= BLOCK_KEYS:
                yield _table(rows)
                of_file.rows += len(rows)
                rows, keys_before = [], summary.keys.total()
        if rows:
            yield _table(rows)
        of_file.rows += len(rows)
        of_file.counts, of_file.is_cut = reader.counts, reader.is_cut


def _table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    """Raises TraceError for a value that its column cannot have."""
    try:
        return pyarrow.Table.from_pylist(rows, _ROWS)
    except pyarrow.ArrowException as problem:
        raise TraceError(f"a recording has an impossible value: {problem}") from None


def _rows_of(entry: Sequence[Any], members: GroupMembers, summary: Summary) -> Iterator[dict[str, Any]]:
    """Raises TypeError, ValueError or LookupError if the entry does not have the shape of one."""
    kind, _, client, address = entry[:4]
    head = {"client": client, "address": address}
    match kind:
        case n if n in (PRODUCE, PRODUCE_IN_TRANSACTION):
            yield from _produced(head, entry, summary)
        case n if n in (FETCH, FETCH_COMMITTED):
            yield from _fetched(head, entry)
        case n if n == MEMBER:
            members.add(client, address, entry[4], entry[5:])
        case n if n == END:
            _, _, _, _, transactional_id, how = entry
            of_end = {"op": OF_END[how], "topic": "", "partition": 0, "records": 0, "bytes": 0}
            yield head | of_end | {"transactional_id": transactional_id}
        case n if n == OFFSETS:
            head |= {"op": schema.OFFSETS, "transactional_id": entry[4], "group": entry[5]}
            for topic, partition in _groups(entry[OFFSETS_HEAD:], OF_OFFSETS):
                yield head | {"topic": topic, "partition": partition, "records": 0, "bytes": 0}
        case _:
            raise ValueError(f"{kind!r} is no kind of an entry")


def _produced(head: dict[str, Any], entry: Sequence[Any], summary: Summary) -> Iterator[dict[str, Any]]:
    begin, transactional_id = PRODUCE_HEAD, None
    if entry[0] == PRODUCE_IN_TRANSACTION:
        begin, transactional_id = TRANSACTIONAL_HEAD, entry[PRODUCE_HEAD]
    head |= {"op": schema.PRODUCE, "acks": entry[4], "transactional_id": transactional_id}
    for topic, partition, records, size, about in _groups(entry[begin:], OF_PRODUCED):
        row = head | {"topic": topic, "partition": partition, "records": records, "bytes": size}
        attributes = about
        if isinstance(about, list):
            attributes, key_bytes, hashes = about
            row["keys"] = numpy.frombuffer(hashes, ">i8").astype(numpy.int64)
            summary.keys[topic] += len(row["keys"])
            summary.key_bytes[topic] += key_bytes
        row["compression"] = COMPRESSIONS[attributes & COMPRESSION_MASK]
        row["transactional"] = bool(attributes & TRANSACTIONAL_BIT)
        yield row


def _fetched(head: dict[str, Any], entry: Sequence[Any]) -> Iterator[dict[str, Any]]:
    _, _, _, _, min_bytes, max_wait_ms, max_bytes = entry[:FETCH_HEAD]
    head |= {"op": schema.FETCH, "min_bytes": min_bytes, "max_wait_ms": max_wait_ms, "max_bytes": max_bytes}
    head["read_committed"] = entry[0] == FETCH_COMMITTED
    for topic, partition, offset, records, size, high_watermark in _groups(entry[FETCH_HEAD:], OF_FETCHED):
        row = head | {"topic": topic, "partition": partition, "records": records, "bytes": size}
        row["behind"] = max(high_watermark - offset, 0) if min(offset, high_watermark) >= 0 else None
        row["offset"] = offset if offset >= 0 else None
        yield row


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


def _finished(
    table: pyarrow.Table, start: int, numbers: _RequestNumbers, members: GroupMembers, summary: Summary
) -> pyarrow.Table:
    """The rows as the trace has them."""
    names = ("client", "address", "topic", "op", "group")
    groups = [
        members.group_of(client, address, topic) if op == schema.FETCH else group
        for client, address, topic, op, group in zip(*(table[name].to_pylist() for name in names), strict=True)
    ]
    made = {
        "time_ns": pyarrow.array(table["time_ns"].to_numpy() - start, pyarrow.int64()),
        "request": pyarrow.array(numbers.of(table["key"].to_numpy()), pyarrow.int64()),
        "key_hash": pyarrow.nulls(table.num_rows, pyarrow.int64()),
        "group": pyarrow.array(groups, pyarrow.string()),
    }
    columns = [*SCHEMA, *TRANSACTIONS]
    if summary.keys:
        columns += KEYS
        sizes = {topic: mean_key_size(summary.key_bytes[topic], keys) for topic, keys in summary.keys.items()}
        has_keys = table["keys"].is_valid().to_pylist()
        key_sizes = [
            sizes[topic] if has else None for topic, has in zip(table["topic"].to_pylist(), has_keys, strict=True)
        ]
        made["key_bytes"] = pyarrow.array(key_sizes, pyarrow.int32())
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
