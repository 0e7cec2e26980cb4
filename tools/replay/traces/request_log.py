"""Makes a trace from the request log of a real Kafka (RPL-5).

The log has a line for each request, written when its answer was sent. What a trace needs follows from it:

- **Arrival**: the time of the line minus `totalTimeMs`. A connection's requests are handled one after the other, so none arrives
  before the one ahead of it.
- **Records of a batch** are not in the log. The next base offset of the same partition, minus the batch's own, gives them. Batches
  without a base offset (acks 0) share the records between two known offsets with their neighbours, by size. The last batch
  of a partition ends at the highest offset that any fetch has shown.
- **Records of a fetch** are not in the log. The next fetch offset of the same connection and partition gives them.
- What has no such successor is *estimated* from the mean size of a record, and counted.
- **Fetch sessions** (KIP-227) name only partitions that change. The importer remembers the partitions of each session.
- **Topic ids** (fetches since Kafka 3.1) become names by the metadata answers and controller requests in the log.
- **The group** of a client is that of its JOIN_GROUP, SYNC_GROUP, HEARTBEAT and OFFSET_COMMIT requests, by host and client id. It is
  unknown if there are two.

Fetches of followers, and requests of brokers, are not the load of clients. They are counted and left out.
Memory holds what waits for its successor, and names; rows are sorted in files.
"""

from __future__ import annotations

import gzip
import heapq
import secrets
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.traces.base_offsets import UNKNOWN, Batch, PartitionBatches
from tools.replay.traces.ordering import in_whole_times, runs_directory, sorted_stream
from tools.replay.traces.request_log_lines import CompletedRequest, CutOff, api_of, moment_of, parse_line
from tools.replay.traces.schema import FETCH, PRODUCE, SCHEMA, TraceError, TraceInfo, TraceWriter

REMEMBERED = 100_000
"""Fetch sessions, connections and partitions of connections that are remembered; the longest unused are forgotten."""
LINE_MAX = 16 * 1024 * 1024
"""Characters of a line. A longer one is taken as cut off."""
RECORD_BYTES = 100
"""Size of a record where no size is known at all."""
ROWS_AT_ONCE = 32 * 1024
"""Rows that are Python objects at once."""
GROUP_APIS = ("JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "OFFSET_COMMIT", "CONSUMER_GROUP_HEARTBEAT")
TOPIC_APIS = ("METADATA", "LEADER_AND_ISR", "UPDATE_METADATA", "CREATE_TOPICS")
READ_APIS = {"PRODUCE", "FETCH", "WRITE_TXN_MARKERS", *GROUP_APIS, *TOPIC_APIS}

ROWS = pyarrow.schema(
    [
        ("at_ns", pyarrow.int64()),
        ("request", pyarrow.int64()),
        ("client", pyarrow.int32()),
        ("topic", pyarrow.int32()),
        ("partition", pyarrow.int32()),
        ("records", pyarrow.int64()),
        ("bytes", pyarrow.int64()),
        ("acks", pyarrow.int16()),
        ("transactional", pyarrow.bool_()),
        ("min_bytes", pyarrow.int32()),
        ("max_wait_ms", pyarrow.int32()),
        ("max_bytes", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("behind", pyarrow.int64()),
    ]
)
"""What is sorted. Topic and client are numbers, because their names are known only at the end; `acks` is null for a fetch."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`topic_names`: names of topic ids that the log does not explain."""

    hash_clients: bool = False
    zone: tzinfo = UTC
    topics: frozenset[str] = frozenset()
    compression: str = "none"
    skip_bad_lines: bool = False
    skip_listeners: frozenset[str] = frozenset()
    topic_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """What an import found. `skipped`: kind of request -> number of requests that the trace does not have."""

    lines: int = 0
    bad_lines: int = 0
    rows: int = 0
    produce: int = 0
    fetch: int = 0
    records_estimated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unknown_topic_ids: list[str] = field(default_factory=list)

    def describe(self) -> Iterator[str]:
        yield f"operations: {self.produce:,} produce, {self.fetch:,} fetch, in {self.rows:,} rows"
        if self.records_estimated:
            yield f"estimated: the number of records of {self.records_estimated:,} rows, from the mean size of a record"
        for kind, count in sorted((+self.skipped).items()):
            yield f"left out: {count:,} x {kind}"
        if self.bad_lines:
            yield f"left out: {self.bad_lines:,} bad lines"
        if self.unknown_topic_ids:
            yield (
                f"topics without a name in the log: {', '.join(self.unknown_topic_ids)}; they keep the id as name, "
                "unless --topic-id ID=NAME gives one"
            )


def import_request_log(files: Sequence[Path], out: Path, options: ImportOptions) -> Found:
    """Writes the trace of all the files together. Raises TraceError; then nothing is at `out`."""
    found = Found()
    info = TraceInfo(0, f"imported from Kafka's request log: {len(files)} file{'s' if len(files) > 1 else ''}")
    with TraceWriter(out, info) as writer, runs_directory(out) as directory:
        importer = _Importer(found, options)
        rows = sorted_stream(_rows(importer, files), directory, "at_ns")
        if not _write(importer, in_whole_times(rows, "at_ns"), writer):
            raise TraceError(
                f"no produce or fetch of a client is in {', '.join(map(str, files[:3]))}; {out} was not written"
            )
    return found


def _rows(importer: _Importer, files: Sequence[Path]) -> Iterator[pyarrow.RecordBatch]:
    """What the importer makes of the files, in the order in which it knows it. Raises TraceError."""
    found, options = importer.found, importer.options
    for request in _requests(files, found, options):
        try:
            importer.take(request)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            _bad_line(request.place, f"its content is not as Kafka writes it: {problem!r}", found, options)
        if len(importer.rows) >= ROWS_AT_ONCE:
            yield importer.taken_rows()
    importer.finish()
    yield importer.taken_rows()


# Lines


def _requests(files: Sequence[Path], found: Found, options: ImportOptions) -> Iterator[CompletedRequest]:
    """The requests of all files that may matter, in the order of their lines' times. A file is open while its times are due."""
    waiting = [(_first_moment(file, options), number, file) for number, file in enumerate(files)]
    heapq.heapify(waiting)
    streams: list[tuple[int, int, CompletedRequest, Iterator[CompletedRequest]]] = []
    while waiting or streams:
        while waiting and (not streams or waiting[0][0] <= streams[0][0]):
            _, number, file = heapq.heappop(waiting)
            stream = _requests_of(file, found, options)
            first = next(stream, None)
            if first is not None:
                heapq.heappush(streams, (first.completed_ns, number, first, stream))
        if not streams:
            continue
        _, number, request, stream = streams[0]
        yield request
        following = next(stream, None)
        if following is None:
            heapq.heappop(streams)
        else:
            heapq.heapreplace(streams, (following.completed_ns, number, following, stream))


def _first_moment(file: Path, options: ImportOptions) -> int:
    """Raises TraceError if the file has no line of the request log."""
    reason = "is kafka.request.logger at DEBUG?"
    for _, line in _lines(file):
        try:
            if api_of(line) is not None and (moment := moment_of(line, options.zone)) is not None:
                return moment
        except CutOff as problem:
            reason = str(problem)
    raise TraceError(f"{file} has no line of Kafka's request log: {reason}")


def _requests_of(file: Path, found: Found, options: ImportOptions) -> Iterator[CompletedRequest]:
    for number, line in _lines(file):
        found.lines += 1
        try:
            api = api_of(line)
            if api in READ_APIS:
                yield replace(parse_line(line, options.zone), place=f"{file}, line {number}")
            elif api is not None:
                found.skipped[api] += 1
        except CutOff as problem:
            _bad_line(f"{file}, line {number}", str(problem), found, options)


def _bad_line(place: str, problem: str, found: Found, options: ImportOptions) -> None:
    """Counts the line. Raises TraceError unless bad lines are left out."""
    if not options.skip_bad_lines:
        raise TraceError(f"{place}: {problem}; --skip-bad-lines leaves such lines out") from None
    found.bad_lines += 1


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1. Raises TraceError if the file cannot be read."""
    number = 0
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if packed else file.open("rb") as lines:
            while line := lines.readline(LINE_MAX):
                number += 1
                yield number, line.decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise TraceError(f"{file}, after line {number}: cannot be read: {reason}") from None


# Requests


class _Remembered(OrderedDict[Any, Any]):
    """The keys that were used last."""

    def recall(self, key: Any) -> Any:
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: Any, value: Any) -> Any:
        """Returns what was forgotten for it, if anything."""
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False)[1] if len(self) > REMEMBERED else None


class _Numbers(dict[Any, int]):
    """Numbers things from 0, in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


class _Importer:
    """Turns requests into rows, with the columns of `ROWS`. A row is added when its records are known, or cannot become known."""

    def __init__(self, found: Found, options: ImportOptions) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.found = found
        self.options = options
        self.topics = _Numbers()
        self.clients = _Numbers()
        """(host, client id) -> number"""
        self.groups: defaultdict[int, set[str]] = defaultdict(set)
        self.names: dict[str, str] = dict(options.topic_names)
        """Topic id -> name"""
        self.partitions: dict[str, int] = {}
        self.sizes = _RecordSizes()
        self.ends: dict[tuple[int, int], int] = {}
        """The highest offset that a fetch has shown"""
        self._requests = 0
        self._produced: defaultdict[tuple[int, int], PartitionBatches] = defaultdict(PartitionBatches)
        self._sessions = _Remembered()
        self._reads = _Remembered()
        self._arrivals = _Remembered()

    def take(self, request: CompletedRequest) -> None:
        if request.listener in self.options.skip_listeners:
            self.found.skipped[f"{request.api} of listener {request.listener}"] += 1
        elif request.api == "PRODUCE":
            self._produce(request)
        elif request.api == "FETCH":
            self._fetch(request)
        elif request.api == "WRITE_TXN_MARKERS":
            self._markers(request)
        else:
            self.found.skipped[request.api] += 1
            if request.api in GROUP_APIS:
                group = request.request.get("groupId")
                if group:
                    self.groups[self._client(request)].add(str(group))
            else:
                self._learn_topics(request)

    def finish(self) -> None:
        """Gives up waiting."""
        ends: dict[tuple[str, int], int] = {}
        names = self.topic_names()
        for (topic, partition), end in self.ends.items():
            key = names[topic], partition
            ends[key] = max(end, ends.get(key, UNKNOWN))
        for (topic, partition), produced in self._produced.items():
            self._add_batches(produced.finish(ends.get((names[topic], partition), UNKNOWN)))
        for row in self._reads.values():
            self._add(row, UNKNOWN)

    def taken_rows(self) -> pyarrow.RecordBatch:
        """The rows added since the last call. Raises TraceError for a number that is too large for its column."""
        rows, self.rows = self.rows, []
        columns = zip(*rows, strict=True) if rows else ([] for _ in ROWS)
        arrays = []
        for values, column in zip(columns, ROWS, strict=True):
            try:
                arrays.append(pyarrow.array(values, column.type))
            except (pyarrow.ArrowException, OverflowError) as problem:
                raise TraceError(f"the log has a {column.name} that is too large: {problem}") from None
        return pyarrow.record_batch(arrays, schema=ROWS)

    def topic_names(self) -> list[str]:
        """The name of each topic, by its number. An id without a known name stays."""
        return [key if kind == "name" else self.names.get(key, key) for kind, key in self.topics]

    def _learn_topics(self, request: CompletedRequest) -> None:
        for answered in request.response.get("topics") or ():
            if isinstance(answered, dict) and answered.get("name"):
                count = len(answered.get("partitions") or ()) or answered.get("numPartitions", 0)
                self._learn(answered["name"], answered.get("topicId"), count)
        for state in request.request.get("topicStates") or ():
            self._learn(state.get("topicName"), state.get("topicId"), 0)

    def _learn(self, name: Any, topic_id: Any, partitions: int) -> None:
        if isinstance(name, str) and isinstance(topic_id, str):
            self.names.setdefault(topic_id, name)
        if isinstance(name, str) and isinstance(partitions, int):
            self.partitions[name] = max(partitions, self.partitions.get(name, 0))

    def _client(self, request: CompletedRequest) -> int:
        return self.clients[request.host, request.client]

    def _topic(self, entry: Mapping[str, Any]) -> int:
        name = entry.get("name") or entry.get("topic")
        return self.topics[("name", str(name)) if name else ("id", str(entry.get("topicId")))]

    def _arrival(self, request: CompletedRequest) -> int:
        at = max(request.arrived_ns, self._arrivals.recall(request.connection) or 0)
        self._arrivals.keep(request.connection, at)
        return at

    # Produce

    def _produce(self, request: CompletedRequest) -> None:
        arrival = self._arrival(request)
        batches = list(_batches_of(request))
        if not batches:
            self.found.skipped["PRODUCE without content"] += 1
            return
        accepted = [batch for batch in batches if not batch.refused]
        appended = request.arrived_ns + request.local_ns
        self._requests += 1
        self.found.skipped["PRODUCE batch that was refused"] += len(batches) - len(accepted)
        for batch in accepted:
            topic = self._topic(batch.topic)
            row = (
                arrival,
                self._requests,
                self._client(request),
                topic,
                batch.partition,
                UNKNOWN,
                batch.size,
                int(request.request.get("acks", -1)),
                bool(request.request.get("transactionalId")),
                *(None,) * 5,
            )
            self._wait(topic, batch.partition, Batch(row, batch.size, appended), batch.base_offset)

    def _markers(self, request: CompletedRequest) -> None:
        """A transaction's end takes an offset in each of its partitions."""
        self.found.skipped[request.api] += 1
        for marker in request.request.get("markers") or ():
            for entry in marker.get("topics") or ():
                for partition in entry.get("partitionIndexes") or ():
                    self._wait(
                        self._topic(entry),
                        int(partition),
                        Batch(None, 0, request.arrived_ns + request.local_ns, is_marker=True),
                        UNKNOWN,
                    )

    def _wait(self, topic: int, partition: int, batch: Batch, base_offset: int) -> None:
        self._add_batches(self._produced[topic, partition].add(batch, base_offset))

    def _add_batches(self, settled: Sequence[tuple[Batch, int]]) -> None:
        for batch, records in settled:
            if not batch.is_marker:
                self._add(batch.row, records)

    # Fetch

    def _fetch(self, request: CompletedRequest) -> None:
        asked = request.request
        if not asked:
            self.found.skipped["FETCH without content"] += 1
            return
        positions, ends_session = self._positions(request)
        answered = list(self._answered(request))
        for topic, partition, answer in answered:
            self._saw_end(topic, partition, int(answer.get("highWatermark", UNKNOWN)))
        if max(asked.get("replicaId", -1), (asked.get("replicaState") or {}).get("replicaId", -1)) >= 0:
            for (topic, partition), offset in positions.items():
                self._saw_end(topic, partition, offset)
            self.found.skipped["FETCH of a follower"] += 1
            return
        arrival = self._arrival(request)
        if ends_session:
            self.found.skipped["FETCH that ends a fetch session"] += 1
            return
        returned = [
            (topic, partition, answer, size)
            for topic, partition, answer in answered
            if (size := _size_of_records(answer)) > 0 and not answer.get("errorCode")
        ]
        if not positions and not returned:
            self.found.skipped["FETCH of a fetch session that began before the log"] += 1
            return
        self._requests += 1
        if not returned:
            topic, partition = next(iter(positions))
            offset = positions[topic, partition]
            self._add(self._fetch_row(request, arrival, topic, partition, 0, offset, UNKNOWN), 0)
        for topic, partition, answer, size in returned:
            offset = positions.get((topic, partition), UNKNOWN)
            end = int(answer.get("highWatermark", UNKNOWN))
            row = self._fetch_row(request, arrival, topic, partition, size, offset, end)
            place = request.connection, topic, partition
            self._end_read(place, UNKNOWN)
            forgotten = self._reads.keep(place, row)
            if forgotten is not None:
                self._add(forgotten, UNKNOWN)

    def _positions(self, request: CompletedRequest) -> tuple[dict[tuple[int, int], int], bool]:
        """The partitions that the fetch reads, with their offsets, and whether it only ends its session.

        The offsets in the request also say how many records the earlier fetches of the same connection returned.
        """
        asked = request.request
        named = {
            (self._topic(entry), int(partition["partition"])): int(partition["fetchOffset"])
            for entry in asked.get("topics") or ()
            for partition in entry.get("partitions") or ()
        }
        for (topic, partition), offset in named.items():
            self._end_read((request.connection, topic, partition), offset)
        session, epoch = asked.get("sessionId", 0), asked.get("sessionEpoch", -1)
        positions = named
        if session and epoch == -1:
            self._sessions.pop((request.broker, session), None)
            if not named:
                return {}, True
        elif session and epoch > 0:
            positions = self._sessions.recall((request.broker, session)) or {}
            positions.update(named)
            for entry in asked.get("forgottenTopicsData") or ():
                for partition in entry.get("partitions") or ():
                    positions.pop((self._topic(entry), int(partition)), None)
        if request.response.get("sessionId"):
            self._sessions.keep((request.broker, request.response["sessionId"]), positions)
        return positions, False

    def _answered(self, request: CompletedRequest) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        for entry in request.response.get("responses") or ():
            topic = self._topic(entry)
            for answer in entry.get("partitions") or entry.get("partitionResponses") or ():
                told = {**(answer.get("partitionHeader") or {}), **answer}
                yield topic, int(told.get("partitionIndex", told.get("partition", UNKNOWN))), told

    def _fetch_row(
        self, request: CompletedRequest, arrival: int, topic: int, partition: int, size: int, offset: int, end: int
    ) -> tuple[Any, ...]:
        asked = request.request
        return (
            arrival,
            self._requests,
            self._client(request),
            topic,
            partition,
            UNKNOWN,
            size,
            None,
            None,
            asked.get("minBytes", 1),
            asked.get("maxWaitMs", 0),
            asked.get("maxBytes", 2**31 - 1),
            offset if offset >= 0 else None,
            max(0, end - offset) if offset >= 0 and end >= 0 else None,
        )

    def _end_read(self, place: tuple[str, int, int], next_offset: int) -> None:
        """Adds the row of the fetch that waits for the next offset of its connection and partition, if there is one."""
        row = self._reads.pop(place, None)
        if row is None:
            return
        offset, behind = row[-2:]
        is_progress = offset is not None and 0 < next_offset - offset <= (behind or 0)
        self._add(row, next_offset - offset if is_progress else UNKNOWN)

    def _saw_end(self, topic: int, partition: int, offset: int) -> None:
        self.ends[topic, partition] = max(offset, self.ends.get((topic, partition), UNKNOWN))

    def _add(self, row: tuple[Any, ...], records: int) -> None:
        topic, partition, size, acks = row[3], row[4], row[6], row[7]
        if records > 0 and size > 0:
            self.sizes.learn(acks is None, topic, partition, size, records)
        self.rows.append((*row[:5], records, *row[6:]))


class _ProducedBatch(NamedTuple):
    topic: Mapping[str, Any]
    partition: int
    size: int
    base_offset: int
    refused: bool


def _batches_of(request: CompletedRequest) -> Iterator[_ProducedBatch]:
    """The batches of a produce request: sizes are in the request, base offsets in the answer, if there is one."""
    if not request.request:
        return
    sizes: dict[tuple[str, int], tuple[Mapping[str, Any], int]] = {
        (_key(entry), int(batch["index"])): (entry, _size_of_records(batch))
        for entry in request.request.get("topicData") or ()
        for batch in entry.get("partitionData") or ()
    }
    answers = {
        (_key(entry), int(answer.get("index", UNKNOWN))): answer
        for entry in request.response.get("responses") or ()
        for answer in entry.get("partitionResponses") or ()
    }
    for key, (entry, size) in sizes.items():
        answer = answers.get(key, {})
        refused = bool(answer.get("errorCode", 0))
        yield _ProducedBatch(entry, key[1], size, int(answer.get("baseOffset", UNKNOWN)), refused)


def _key(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or entry.get("topic") or entry.get("topicId"))


def _size_of_records(entry: Mapping[str, Any]) -> int:
    """Bytes of the records of a partition. Kafka 2.8 has another name."""
    return int(entry.get("recordsSizeInBytes", entry.get("recordSetSizeInBytes", 0)))


class _RecordSizes:
    """The mean size of a record, in fetches and in produced batches, by partition, by topic and in all."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])

    def learn(self, is_fetch: bool, topic: int, partition: int, size: int, records: int) -> None:
        payload = size if is_fetch else max(1, size - HEADER_SIZE)
        for key in ((is_fetch, topic, partition), (is_fetch, topic), (topic,), ()):
            sums = self._sums[key]
            sums[0] += payload
            sums[1] += records

    def mean(self, is_fetch: bool, topic: int, partition: int) -> float:
        for key in ((is_fetch, topic, partition), (is_fetch, topic), (topic,), ()):
            if key in self._sums:
                size, records = self._sums[key]
                return size / records
        return RECORD_BYTES


# Rows


def _write(importer: _Importer, tables: Iterable[pyarrow.Table], writer: TraceWriter) -> bool:
    """Writes rows that come in whole times. Returns False if there are none. Raises TraceError if none has a chosen topic."""
    options = importer.options
    topics = importer.topic_names()
    chosen = pyarrow.array([not options.topics or name in options.topics for name in topics])
    clients, groups = _names_of_clients(importer, options.hash_clients)
    partitions: dict[str, int] = {}
    start: int | None = None
    requests = 0
    has_rows = False
    for table in tables:
        has_rows = has_rows or table.num_rows > 0
        table = table.sort_by([("at_ns", "ascending"), ("request", "ascending")])
        table = table.filter(chosen.take(table["topic"]))
        if not table.num_rows:
            continue
        start = table["at_ns"][0].as_py() if start is None else start
        columns = {
            name: table[name].to_pylist() for name in ("topic", "partition", "records", "bytes", "acks", "request")
        }
        _estimate(columns, importer)
        for topic, partition in set(zip(columns["topic"], columns["partition"], strict=True)):
            known = max(partitions.get(topics[topic], 0), importer.partitions.get(topics[topic], 0))
            partitions[topics[topic]] = max(known, partition + 1)
        old = numpy.array(columns["request"])
        new = requests + numpy.cumsum(numpy.diff(old, prepend=old[0]) != 0)
        requests = int(new[-1]) + 1
        is_fetch = table["acks"].is_null().to_numpy()
        _count(importer.found, is_fetch, new)
        client = table["client"].combine_chunks()
        made = {
            "time_ns": table["at_ns"].to_numpy() - start,
            "request": new,
            "op": pyarrow.array(numpy.where(is_fetch, FETCH, PRODUCE)),
            "client": pyarrow.array(clients, pyarrow.string()).take(client),
            "topic": pyarrow.array(topics, pyarrow.string()).take(table["topic"].combine_chunks()),
            "key_hash": pyarrow.nulls(table.num_rows, pyarrow.int64()),
            "records": columns["records"],
            "bytes": columns["bytes"],
            "compression": pyarrow.array(numpy.full(table.num_rows, options.compression), mask=is_fetch),
            "group": pyarrow.compute.if_else(
                pyarrow.array(is_fetch), pyarrow.array(groups, pyarrow.string()).take(client), None
            ),
        }
        writer.write(
            pyarrow.table(
                [made[field.name] if field.name in made else table[field.name] for field in SCHEMA], schema=SCHEMA
            )
        )
    if not has_rows:
        return False
    if start is None:
        raise TraceError(f"the log has no produce or fetch of {', '.join(sorted(options.topics))}; nothing was written")
    named = {topic for topic, is_chosen in zip(topics, chosen.to_pylist(), strict=True) if is_chosen}
    importer.found.unknown_topic_ids = sorted(
        {
            key
            for (kind, key), name in zip(importer.topics, topics, strict=True)
            if kind == "id" and key == name in named
        }
    )
    writer.info = replace(writer.info, start=start, topics=partitions)
    return True


def _estimate(columns: dict[str, list[Any]], importer: _Importer) -> None:
    """Replaces UNKNOWN numbers of records."""
    found, sizes = importer.found, importer.sizes
    for number, (records, size) in enumerate(zip(columns["records"], columns["bytes"], strict=True)):
        if records != UNKNOWN:
            continue
        is_fetch = columns["acks"][number] is None
        mean = sizes.mean(is_fetch, columns["topic"][number], columns["partition"][number])
        header = 0 if is_fetch else HEADER_SIZE
        columns["records"][number] = max(1, round((size - header) / mean))
        found.records_estimated += 1


def _count(found: Found, is_fetch: Any, requests: Any) -> None:
    first = numpy.diff(requests, prepend=-1) != 0
    found.rows += len(requests)
    found.fetch += int((first & is_fetch).sum())
    found.produce += int((first & ~is_fetch).sum())


def _names_of_clients(importer: _Importer, hashed: bool) -> tuple[list[str], list[str | None]]:
    """The name and the group of each client. A client id that several hosts use gets a number: `a`, `a#2`."""
    hosts: Counter[str] = Counter()
    names: list[str] = []
    groups: list[str | None] = []
    for (_, client), number in importer.clients.items():
        hosts[client] += 1
        names.append(client if hosts[client] == 1 else f"{client}#{hosts[client]}")
        found = importer.groups.get(number, set())
        groups.append(next(iter(found)) if len(found) == 1 else None)
    if not hashed:
        return names, groups
    key = secrets.token_bytes(16)  # without it, a list of likely names would give them back
    return [_hashed(name, key) for name in names], [None if name is None else _hashed(name, key) for name in groups]


def _hashed(name: str, key: bytes) -> str:
    return blake2b(name.encode(), digest_size=6, key=key).hexdigest()
