"""Makes a trace from the request log of a real Kafka, as a Spark job (RPL-5).

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
- **Transactions** end with an END_TXN, or with the next INIT_PRODUCER_ID of the id. Times of several brokers are apart by as much as their
  clocks, and by the millisecond of the log: a batch may be counted to the transaction before or after its own.
- **The group** of a client is that of its requests as a member (GROUP_APIS), by host and client id. It is unknown if there are two.

Fetches of followers, and requests of brokers, are not the load of clients. They are counted and left out.

Spark reads the files in splits, a packed file in one (`_read_split`), follows the fetch sessions (`_follow_sessions`), and decides and
sorts the rows by SQL (`request_log.sql`). This process names and numbers them while it writes the trace.
"""

from __future__ import annotations

import gzip
import secrets
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.run.queries import views
from tools.replay.run.spark_process import LOCAL, SparkSettings
from tools.replay.traces.ordering import runs_directory
from tools.replay.traces.request_log_lines import CompletedRequest, CutOff, api_of, parse_line
from tools.replay.traces.schema import (
    ABORT,
    COMMIT,
    ENDS,
    FETCH,
    OFFSETS,
    PRODUCE,
    SCHEMA,
    TRANSACTIONS,
    TraceError,
    TraceInfo,
    TraceWriter,
)
from tools.replay.traces.spark_import import columns, import_session, kept, mapped, sorted_batches
from tools.replay.traces.transaction_ends import INIT_OP, with_ends

SPLIT_BYTES = 32 * 1024 * 1024
LINE_MAX = 16 * 1024 * 1024
"""Bytes of a line. A longer one is taken as cut off."""
RECORD_BYTES = 100
"""Size of a record where no size is known at all."""
ROWS_AT_ONCE = 4096
"""Rows that are Python objects at once."""
UNKNOWN = -1
GROUP_APIS = ("JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "OFFSET_COMMIT", "CONSUMER_GROUP_HEARTBEAT")
TOPIC_APIS = ("METADATA", "LEADER_AND_ISR", "UPDATE_METADATA", "CREATE_TOPICS")
TRANSACTION_APIS = ("END_TXN", "INIT_PRODUCER_ID", "TXN_OFFSET_COMMIT")
READ_APIS = {"PRODUCE", "FETCH", "WRITE_TXN_MARKERS", *TRANSACTION_APIS, *GROUP_APIS, *TOPIC_APIS}
CLIENT = ("client", "completed", "place")
BY_ID = "id "
"""Before a topic's id, where the log does not say the name."""

_PLACE = [
    ("key", pyarrow.string()),
    ("partition", pyarrow.int32()),
    ("offset", pyarrow.int64()),
    ("size", pyarrow.int64()),
]
_PLACES = pyarrow.list_(pyarrow.struct(_PLACE))
REQUESTS = columns(
    "kind:string text:string key:string number:int64 completed:int64 place:int64 arrived:int64 appended:int64 connection:string "
    "client:string acks:int32 transactional:bool min_bytes:int32 max_wait_ms:int32 max_bytes:int32 session:string epoch:int64 "
    "transactional_id:string group:string read_committed:bool",
    **dict.fromkeys(("batches", "named", "forgotten", "answered"), _PLACES),
)
"""What the lines say. `kind`: produce, marker, fetch, offsets, commit, abort or init, a request each; or a fact with `text`, `key` and
`number` only: lines, requests, skipped, bad, topic, partitions, group, end. `completed`, `arrived` and `appended` are since 1970; `place`
is the file's number and the line's offset in it. `client` is the host and the client id; `key` is the name of a topic, or its id behind
BY_ID. `offset` is the base offset of a batch, and the high watermark of what is `answered`."""
FETCHED = columns(
    "text:string at_ns:int64 completed:int64 place:int64 connection:string client:string min_bytes:int32 max_wait_ms:int32 "
    "max_bytes:int32 read_committed:bool key:string partition:int32 size:int64 offset:int64 end_offset:int64 named:int64 is_first:bool"
)
"""A partition that a fetch names or returns. `is_first`: it stands for a fetch which returned nothing. `text`: why a request has no row."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`topic_names`: names of topic ids that the log does not explain."""

    hash_clients: bool = False
    time_zone: tzinfo = UTC
    topics: Collection[str] = ()
    compression: str = "none"
    skip_bad_lines: bool = False
    skip_listeners: Collection[str] = ()
    topic_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """What an import found. `skipped`: kind of request -> number of requests that the trace does not have."""

    lines: int = 0
    bad_lines: int = 0
    rows: int = 0
    produce: int = 0
    fetch: int = 0
    ends: int = 0
    records_estimated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unknown_topic_ids: list[str] = field(default_factory=list)

    def describe(self) -> Iterator[str]:
        yield f"operations: {self.produce:,} produce, {self.fetch:,} fetch, in {self.rows:,} rows"
        if self.ends:
            yield f"transactions: {self.ends:,} ends"
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


def import_request_log(files: Sequence[Path], out: Path, options: ImportOptions, spark: SparkSettings = LOCAL) -> Found:
    """Writes the trace of all the files together. Raises TraceError; then nothing is at `out`."""
    splits = list(_splits(files))  # a file that is not there is said before Spark starts, which takes seconds
    info = TraceInfo(0, f"imported from Kafka's request log: {len(files)} file{'s' if len(files) > 1 else ''}")
    with TraceWriter(out, info) as writer, runs_directory(out) as scratch, import_session(scratch, spark) as session:
        read = session.createDataFrame(splits, "file bigint, path string, start bigint, stop bigint")
        lines = mapped(read.repartition(len(splits)), partial(_read_split, options), REQUESTS)
        requests = kept(lines, scratch / "requests", partition_by="kind")
        facts = _Facts(files, requests, options)
        fetched = _decide(session, requests, facts, scratch)
        for row in fetched.where("text IS NOT null").groupBy("text").count().collect():
            facts.found.skipped[row[0]] += row[1]
        clients = session.table("counted").select(*CLIENT).union(session.table("transactions").select(*CLIENT))
        names = _Names(facts, clients, options)
        order = ("at_ns", "completed", "place", "topic", "partition")
        if not _write(sorted_batches(session.table("rows"), scratch / "sorted", order), names, facts, options, writer):
            raise TraceError(
                f"no produce or fetch of a client is in {', '.join(map(str, files[:3]))}; {out} was not written"
            )
    return facts.found


# Lines, in Spark's tasks


def _splits(files: Sequence[Path]) -> Iterator[tuple[int, str, int, int | None]]:
    """Raises TraceError for a file that cannot be read."""
    for number, file in enumerate(files):
        try:
            size = None if _is_packed(file) else file.stat().st_size
        except OSError as problem:
            raise TraceError(f"{file} cannot be read: {problem.strerror}") from None
        for start in range(0, size or 1, SPLIT_BYTES):
            yield number, str(file.absolute()), start, None if size is None else start + SPLIT_BYTES


def _is_packed(file: Path | str) -> bool:
    with open(file, "rb") as raw:
        return raw.read(2) == b"\x1f\x8b"


def _lines(path: str, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
    """The lines that begin from `start` on and before `stop`, with their offsets. Raises TraceError."""
    offset = start
    try:
        with gzip.open(path) if _is_packed(path) else open(path, "rb") as stream:
            if start:
                stream.seek(start - 1)
                offset += len(stream.readline()) - 1
            while (stop is None or offset < stop) and (line := stream.readline(LINE_MAX)):
                yield offset, line
                offset += len(line)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise TraceError(f"{path}, after byte {offset}: cannot be read: {reason}") from None


def _read_split(options: ImportOptions, splits: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    for batch in splits:
        for split in batch.to_pylist():
            reader = _Reader(options)
            rows: list[dict[str, Any]] = []
            for offset, line in _lines(split["path"], split["start"], split["stop"]):
                row = reader.row(line, split["file"] << 44 | offset)
                rows += [] if row is None else [row]
                if len(rows) == ROWS_AT_ONCE:
                    yield _batch(rows, REQUESTS)
                    rows = []
            yield _batch([*rows, *reader.facts(split["file"])], REQUESTS)


def _batch(rows: list[dict[str, Any]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Raises TraceError for a number that is too large for its column."""
    try:
        return pyarrow.RecordBatch.from_pylist(rows, schema)
    except (pyarrow.ArrowException, OverflowError) as problem:
        raise TraceError(f"the log has a number that is too large: {problem}") from None


class _Reader:
    """Turns the lines of a split into rows of REQUESTS, and sums up its facts."""

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._counts: Counter[tuple[str, str]] = Counter()
        """(kind, text)"""
        self._highest: defaultdict[tuple[str, str, str], int] = defaultdict(lambda: UNKNOWN)
        """(kind, text, key): the end of a partition, the partitions of a topic"""
        self._texts: dict[tuple[str, str, str], tuple[int, int]] = {}
        """(kind, text, key): a name of a topic, a group of a client; with the time and the place of the first"""
        self._bad: tuple[int, str] | None = None
        """The place of the first bad line, and why it is bad"""
        self._bad_lines = 0

    def facts(self, file: int) -> Iterator[dict[str, Any]]:
        for (kind, text), number in self._counts.items():
            yield {"kind": kind, "text": text, "number": number, "place": file << 44}
        for (kind, text, key), number in self._highest.items():
            yield {"kind": kind, "text": text, "key": key, "number": number}
        for (kind, text, key), (completed, place) in self._texts.items():
            yield {"kind": kind, "text": text, "key": key, "completed": completed, "place": place}
        if self._bad is not None:
            yield {"kind": "bad", "text": self._bad[1], "number": self._bad_lines, "place": self._bad[0]}

    def row(self, line: bytes, place: int) -> dict[str, Any] | None:
        self._counts["lines", ""] += 1
        try:
            text = line.decode("utf-8", "replace")
            api = api_of(text)
            if api is None:
                return None
            self._counts["requests", ""] += 1
            if api not in READ_APIS:
                self._skip(api)
                return None
            request = parse_line(text, self._options.time_zone)
            row = self._read(request, place)
            times = {"completed": request.completed_ns, "arrived": request.arrived_ns, "place": place}
            return row and times | {"appended": request.arrived_ns + request.local_ns} | row
        except CutOff as problem:
            reason = str(problem)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            reason = f"its content is not as Kafka writes it: {problem!r}"
        self._bad = self._bad or (place, reason)
        self._bad_lines += 1
        return None

    def _skip(self, what: str, count: int = 1) -> None:
        self._counts["skipped", what] += count

    def _read(self, request: CompletedRequest, place: int) -> dict[str, Any] | None:
        if request.listener in self._options.skip_listeners:
            self._skip(f"{request.api} of listener {request.listener}")
            return None
        of_client = {"connection": request.connection, "client": f"{request.host} {request.client}"}
        if request.api == "PRODUCE":
            row = self._produce(request)
            return row and row | of_client
        if request.api == "FETCH":
            row = self._fetch(request)
            return row and row | of_client
        if request.api in TRANSACTION_APIS and (row := _of_transaction(request)) is not None:
            return row | of_client
        self._skip(request.api)
        if request.api == "WRITE_TXN_MARKERS":
            return {"kind": "marker", "batches": list(_markers(request))}
        if request.api not in GROUP_APIS:
            self._learn_topics(request, place)
        elif group := request.request.get("groupId"):
            self._texts.setdefault(("group", str(group), of_client["client"]), (request.completed_ns, place))
        return None

    def _learn_topics(self, request: CompletedRequest, place: int) -> None:
        told = [
            (each["name"], each.get("topicId"), len(each.get("partitions") or ()) or each.get("numPartitions", 0))
            for each in request.response.get("topics") or ()
            if isinstance(each, dict) and each.get("name")
        ]
        told += [(each.get("topicName"), each.get("topicId"), 0) for each in request.request.get("topicStates") or ()]
        for name, topic_id, partitions in told:
            if isinstance(name, str) and isinstance(topic_id, str):
                self._texts.setdefault(("topic", name, BY_ID + topic_id), (request.completed_ns, place))
            if isinstance(name, str) and isinstance(partitions, int):
                key = ("partitions", "", name)
                self._highest[key] = max(partitions, self._highest[key])

    def _produce(self, request: CompletedRequest) -> dict[str, Any] | None:
        answers = {
            (_topic(entry), int(answer.get("index", UNKNOWN))): answer
            for entry in request.response.get("responses") or ()
            for answer in entry.get("partitionResponses") or ()
        }
        batches: list[dict[str, Any]] = [
            {"key": _topic(entry), "partition": int(batch["index"]), "size": _size_of_records(batch)}
            for entry in request.request.get("topicData") or ()
            for batch in entry.get("partitionData") or ()
        ]
        if not batches:
            self._skip("PRODUCE without content")
            return {"kind": "produce"}
        accepted = []
        for batch in batches:
            answer = answers.get((batch["key"], batch["partition"]), {})
            if not answer.get("errorCode", 0):
                accepted.append(batch | {"offset": int(answer.get("baseOffset", UNKNOWN))})
        acks, transactional_id = int(request.request.get("acks", -1)), request.request.get("transactionalId") or None
        self._skip("PRODUCE batch that was refused", len(batches) - len(accepted))
        of_transaction = {"transactional": transactional_id is not None, "transactional_id": transactional_id}
        return {"kind": "produce", "acks": acks, "batches": accepted} | of_transaction

    def _fetch(self, request: CompletedRequest) -> dict[str, Any] | None:
        asked = request.request
        if not asked:
            self._skip("FETCH without content")
            return None
        named = [
            {"key": _topic(entry), "partition": int(each["partition"]), "offset": int(each["fetchOffset"])}
            for entry in asked.get("topics") or ()
            for each in entry.get("partitions") or ()
        ]
        answered = list(_answered(request))
        is_follower = max(asked.get("replicaId", -1), (asked.get("replicaState") or {}).get("replicaId", -1)) >= 0
        for each in [*answered, *(named if is_follower else ())]:
            key = ("end", str(each["partition"]), each["key"])
            self._highest[key] = max(each["offset"], self._highest[key])
        if is_follower:
            self._skip("FETCH of a follower")
            return None
        session, epoch = asked.get("sessionId", 0), asked.get("sessionEpoch", -1)
        told = request.response.get("sessionId") or 0
        kept_in = session if session and epoch else told
        return {
            "kind": "fetch",
            "min_bytes": asked.get("minBytes", 1),
            "max_wait_ms": asked.get("maxWaitMs", 0),
            "max_bytes": asked.get("maxBytes", 2**31 - 1),
            "read_committed": asked.get("isolationLevel", 0) == 1,
            "session": f"{request.broker} {kept_in}" if kept_in else None,
            "epoch": epoch if session else 0,
            "named": named,
            "forgotten": [
                {"key": _topic(entry), "partition": int(each)}
                for entry in asked.get("forgottenTopicsData") or ()
                for each in entry.get("partitions") or ()
            ],
            "answered": answered,
        }


def _of_transaction(request: CompletedRequest) -> dict[str, Any] | None:
    """None if the request is of no transaction, or was refused."""
    transactional_id = request.request.get("transactionalId")
    if not transactional_id or request.response.get("errorCode"):
        return None
    found = {"transactional_id": str(transactional_id)}
    if request.api == "INIT_PRODUCER_ID":
        return found | {"kind": INIT_OP}
    if request.api == "END_TXN":
        return found | {"kind": COMMIT if request.request.get("committed") else ABORT}
    places = [
        {"key": _topic(entry), "partition": int(answer["partitionIndex"])}
        for entry in request.response.get("topics") or ()
        for answer in entry.get("partitions") or ()
        if not answer.get("errorCode")
    ]
    return found | {"kind": OFFSETS, "group": str(request.request.get("groupId")), "batches": places}


def _topic(entry: Mapping[str, Any]) -> str:
    name = entry.get("name") or entry.get("topic")
    return str(name) if name else f"{BY_ID}{entry.get('topicId')}"


def _size_of_records(entry: Mapping[str, Any]) -> int:
    """Bytes of the records of a partition. Kafka 2.8 has another name."""
    return int(entry.get("recordsSizeInBytes", entry.get("recordSetSizeInBytes", 0)))


def _markers(request: CompletedRequest) -> Iterator[dict[str, Any]]:
    """A transaction's end takes an offset in each of its partitions."""
    for marker in request.request.get("markers") or ():
        for entry in marker.get("topics") or ():
            for partition in entry.get("partitionIndexes") or ():
                yield {"key": _topic(entry), "partition": int(partition), "size": 0, "offset": UNKNOWN}


def _answered(request: CompletedRequest) -> Iterator[dict[str, Any]]:
    for entry in request.response.get("responses") or ():
        for answer in entry.get("partitions") or entry.get("partitionResponses") or ():
            told = {**(answer.get("partitionHeader") or {}), **answer}
            yield {
                "key": _topic(entry),
                "partition": int(told.get("partitionIndex", told.get("partition", UNKNOWN))),
                "offset": int(told.get("highWatermark", UNKNOWN)),
                "size": 0 if told.get("errorCode") else _size_of_records(told),
            }


# Fetch sessions, in Spark's tasks


def _follow_sessions(fetches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """`fetches`: sorted by session, then in the order of the log."""
    session = None
    positions: dict[tuple[str, int], int] = {}
    for batch in fetches:
        rows: list[dict[str, Any]] = []
        for fetch in batch.to_pylist():
            named = {(each["key"], each["partition"]): each["offset"] for each in fetch["named"]}
            returned = {(each["key"], each["partition"]): each for each in fetch["answered"] if each["size"] > 0}
            if fetch["session"] is None or fetch["session"] != session or fetch["epoch"] <= 0:
                positions = {}
            session = fetch["session"]
            if session is not None and fetch["epoch"] < 0 and not named:
                rows.append({"text": "FETCH that ends a fetch session"})
                continue
            positions |= named
            for each in fetch["forgotten"]:
                positions.pop((each["key"], each["partition"]), None)
            if not positions and not returned:
                rows.append({"text": "FETCH of a fetch session that began before the log"})
            elif not returned:
                rows.append(_part(fetch, next(iter(positions)), positions) | {"is_first": True})
            for place in {**named, **returned}:
                answer = returned.get(place, {"size": 0, "offset": UNKNOWN})
                end = answer["offset"] if answer["offset"] >= 0 else None
                part = {"size": answer["size"], "end_offset": end, "named": named.get(place)}
                rows.append(_part(fetch, place, positions) | part)
        yield _batch(rows, FETCHED)


def _part(fetch: dict[str, Any], place: tuple[str, int], positions: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    offset = positions.get(place, UNKNOWN)
    at = {"key": place[0], "partition": place[1], "offset": offset if offset >= 0 else None}
    return fetch | at | {"size": 0, "is_first": False, "named": None}


# Rows


class _Facts:
    """What the lines say besides requests."""

    def __init__(self, files: Sequence[Path], requests: DataFrame, options: ImportOptions) -> None:
        """Raises TraceError for a bad line, unless bad lines are left out, and for a file without any request."""
        self.found = Found()
        self.names = {BY_ID + topic_id: name for topic_id, name in options.topic_names.items()}
        self.groups: defaultdict[str, set[str]] = defaultdict(set)
        self.seen: dict[str, tuple[int, int]] = {}
        """Client of a group -> time and place of the first request"""
        self.partitions: Counter[str] = Counter()
        with_requests = set()
        bad: list[tuple[int, str]] = []
        ends: list[tuple[str, int, int]] = []
        facts = requests.where("kind NOT IN ('produce', 'fetch', 'marker', 'offsets', 'commit', 'abort', 'init')")
        found = facts.select("kind", "text", "key", "number", "completed", "place").collect()
        for kind, text, key, number, completed, place in sorted(found, key=lambda row: (row[4] or 0, row[5] or 0)):
            match kind:
                case "lines":
                    self.found.lines += number
                case "requests":
                    with_requests.add(place >> 44)
                case "skipped":
                    self.found.skipped[text] += number
                case "bad":
                    bad.append((place, text))
                    self.found.bad_lines += number
                case "topic":
                    self.names.setdefault(key, text)
                case "group":
                    self.groups[key].add(text)
                    self.seen.setdefault(key, (completed, place))
                case "partitions":
                    self.partitions[key] = max(number, self.partitions[key])
                case "end":
                    ends.append((key, int(text), number))
        bad.sort()
        if without := [number for number in range(len(files)) if number not in with_requests]:
            reasons = [text for place, text in bad if place >> 44 == without[0]] or [
                "is kafka.request.logger at DEBUG?"
            ]
            raise TraceError(f"{files[without[0]]} has no line of Kafka's request log: {reasons[0]}")
        if bad and not options.skip_bad_lines:
            place, reason = bad[0]
            file, offset = files[place >> 44], place & (1 << 44) - 1
            line = 1 + sum(1 for _ in _lines(str(file), 0, offset))
            raise TraceError(f"{file}, line {line}: {reason}; --skip-bad-lines leaves such lines out")
        highest: Counter[tuple[str, int]] = Counter()
        for key, partition, end in ends:
            topic = self.names.get(key, key)
            highest[topic, partition] = max(end, highest[topic, partition])
        self.ends = [(topic, partition, end) for (topic, partition), end in highest.items()]


def _decide(session: SparkSession, requests: DataFrame, facts: _Facts, scratch: Path) -> DataFrame:
    """Makes the view `rows`, which has the columns of a trace. Returns what became of the fetches."""
    requests.createOrReplaceTempView("requests")
    session.createDataFrame(list(facts.names.items()), "key string, name string").createOrReplaceTempView("names")
    ends = session.createDataFrame(facts.ends, "topic string, partition int, end_offset bigint")
    ends.createOrReplaceTempView("ends")
    queries = {
        name: text.format(header=HEADER_SIZE, record=RECORD_BYTES)
        for name, text in views("request_log", __package__).items()
    }
    session.sql(queries["arrived"]).createOrReplaceTempView("arrived")
    fetches = session.table("arrived").where("kind = 'fetch'").repartition("session", "connection")
    in_order = fetches.sortWithinPartitions("session", "completed", "place")
    fetched = kept(mapped(in_order, _follow_sessions, FETCHED), scratch / "fetched")
    fetched.createOrReplaceTempView("fetched")
    for name, text in queries.items():
        found = session.sql(text)
        (kept(found, scratch / name) if name in ("counted", "means") else found).createOrReplaceTempView(name)
    return fetched


class _Names:
    """The names of clients and their groups. A client id that several hosts use gets a number: `a`, `a#2`."""

    def __init__(self, facts: _Facts, rows: DataFrame, options: ImportOptions) -> None:
        seen = dict(facts.seen)
        for client, first in rows.groupBy("client").agg(sql.min(sql.struct("completed", "place"))).collect():
            seen[client] = min(tuple(first), seen.get(client, tuple(first)))
        hosts: Counter[str] = Counter()
        key = self._key = secrets.token_bytes(16) if options.hash_clients else None
        self.clients: dict[str, str] = {}
        self.groups: dict[str, str | None] = {}
        for client in sorted(seen, key=lambda each: seen[each]):
            name = client.partition(" ")[2]
            hosts[name] += 1
            self.clients[client] = _hashed(name if hosts[name] == 1 else f"{name}#{hosts[name]}", key)
            groups = facts.groups.get(client, set())
            self.groups[client] = _hashed(next(iter(groups)), key) if len(groups) == 1 else None

    def hashed(self, names: Iterable[str | None]) -> list[str | None]:
        """Groups or transactional ids as the trace has them."""
        return [name and _hashed(name, self._key) for name in names]


def _hashed(name: str, key: bytes | None) -> str:
    """The name itself without a key. Without one, a list of likely names would give hashed names back."""
    return name if key is None else blake2b(name.encode(), digest_size=6, key=key).hexdigest()


def _write(
    batches: Iterable[pyarrow.RecordBatch], names: _Names, facts: _Facts, options: ImportOptions, writer: TraceWriter
) -> bool:
    """Writes sorted rows. Returns False if there are none. Raises TraceError if none has a chosen topic."""
    found = facts.found
    partitions: dict[str, int] = {}
    start: int | None = None
    requests, last = -1, UNKNOWN
    unknown: set[str] = set()
    open_ids: dict[str, str] = {}
    has_rows = False
    for batch in batches:
        has_rows = True
        topics = [topic.removeprefix(BY_ID) for topic in batch["topic"].to_pylist()]
        unknown.update(topic for topic, key in zip(topics, batch["topic"].to_pylist(), strict=True) if topic != key)
        table = pyarrow.table(batch).set_column(
            batch.schema.get_field_index("topic"), "topic", pyarrow.array(topics, pyarrow.string())
        )
        if options.topics:
            table = table.filter(pyarrow.compute.is_in(table["topic"], pyarrow.array(["", *sorted(options.topics)])))
        table = with_ends(table, open_ids)
        if not table.num_rows:
            continue
        start = table["at_ns"][0].as_py() if start is None else start
        has_topic = table.filter(pyarrow.compute.not_equal(table["topic"], ""))
        for row in has_topic.group_by("topic").aggregate([("partition", "max")]).to_pylist():
            known = max(partitions.get(row["topic"], 0), facts.partitions.get(row["topic"], 0))
            partitions[row["topic"]] = max(known, row["partition_max"] + 1)
        places = table["place"].to_numpy()
        is_new = numpy.diff(places, prepend=last) != 0
        numbers = requests + numpy.cumsum(is_new)
        requests, last = int(numbers[-1]), int(places[-1])
        clients, ops = table["client"].to_pylist(), table["op"].to_pylist()
        found.rows += table.num_rows
        counted = Counter(op for op, is_first in zip(ops, is_new, strict=True) if is_first)
        found.fetch += counted[FETCH]
        found.produce += counted[PRODUCE]
        found.ends += sum(counted[op] for op in ENDS)
        found.records_estimated += pyarrow.compute.sum(table["is_estimated"]).as_py()
        of_offsets = names.hashed(table["group"].to_pylist())
        groups = [
            names.groups[client] if op == FETCH else group
            for client, op, group in zip(clients, ops, of_offsets, strict=True)
        ]
        is_produce = pyarrow.compute.equal(table["op"], PRODUCE)
        made = {
            "time_ns": pyarrow.compute.subtract(table["at_ns"], start),
            "request": pyarrow.array(numbers),
            "client": pyarrow.array([names.clients[client] for client in clients]),
            "key_hash": pyarrow.nulls(table.num_rows, pyarrow.int64()),
            "compression": pyarrow.compute.if_else(is_produce, options.compression, None),
            "group": pyarrow.array(groups, pyarrow.string()),
            "transactional_id": pyarrow.array(names.hashed(table["transactional_id"].to_pylist()), pyarrow.string()),
        }
        all_names = (*SCHEMA.names, *TRANSACTIONS.names)
        writer.write(pyarrow.table({name: made[name] if name in made else table[name] for name in all_names}))
    if has_rows and start is None:
        raise TraceError(f"the log has no produce or fetch of {', '.join(sorted(options.topics))}; nothing was written")
    found.unknown_topic_ids = sorted(unknown & partitions.keys())
    writer.info = replace(writer.info, start=start or 0, topics=partitions)
    return has_rows
