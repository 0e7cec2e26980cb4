"""Reads back everything that a replay may have written, in parallel, and compares it with what was acknowledged (RPL-6).

The *found* rows are runs of records: consecutive in the log and in the sequence of one producer, so a batch that is intact is one row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy
import pyarrow
from pyspark.sql import SparkSession

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.record_batch import crc_is_valid, iter_batches
from protocol.types import Address, TopicPartition
from tools.replay.load import fetching, stamps
from tools.replay.load.results import SCHEMA
from tools.replay.load.task import LoadPlan
from tools.replay.load.transactions import TIMEOUT_MS
from tools.replay.places import uri_of
from tools.replay.run.plan import OutputDirectory, Plan, write_json
from tools.replay.run.queries import views
from tools.replay.run.session import read_parquet, spark_schema
from tools.replay.run.stage import load_plan
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection
from tools.wire.offsets import EARLIEST
from tools.wire.security import PLAINTEXT, Security

FOUND_SCHEMA = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),  # of the run's first record
        ("producer", pyarrow.int64()),  # as in the results; null in a row about corrupt or unread records
        ("first_sequence", pyarrow.int64()),  # of the run's first record
        ("records", pyarrow.int64()),  # null: all from the offset on
        # `intact`, `corrupt`, `unread`: could not be read, `deleted`: below the log start,
        # `newest`: the newest record of a key that was read in a range of a compacted topic, whoever wrote it
        ("kind", pyarrow.string()),
        ("key_size", pyarrow.int32()),  # in a row `newest`, else null
        ("key", pyarrow.int64()),  # its first 8 bytes
    ]
)
RANGE_RECORDS = 1_000_000
"""Offsets in a range. One task reads a range."""
FETCH_BYTES = 4 * 1024 * 1024
READ_TIMEOUT_S = 60.0
"""How long the reading of a range may make no progress. Then the rest of the range counts as unread."""
OPEN_TRANSACTION_S = TIMEOUT_MS / 1000 + 15
"""How much longer a broker may answer that there are no committed records yet: a task that was lost may have left a transaction open. The
cluster aborts it when its time is over; Kafka looks for such transactions every ten seconds."""
ROWS_AT_ONCE = 20_000
EVIDENCE = 20

BY_ACKS = {
    "lost": "count(*) AS records FROM lost",
    "duplicated": "sum(records * (copies - 1)) AS records FROM copies",
    "reordered": "count(*) AS records FROM steps_back",
}
"""Counted apart for producers without acks=all, which accept these after a failure."""
OF_FOUND = {"found": "intact", "corrupted": "corrupt"}
OF_EXCUSES = {"unseen": "unread", "deleted": "deleted"}
EVIDENCE_OF = {
    "lost": "SELECT * FROM lost ORDER BY acks, producer, sequence",
    "duplicated": "SELECT * FROM copies ORDER BY acks, producer, first_sequence",
    "reordered": "SELECT * FROM steps_back ORDER BY acks, topic, partition, offset",
    "corrupted": "SELECT topic, partition, offset FROM found WHERE kind = 'corrupt' ORDER BY 1, 2, 3",
    "elsewhere": "SELECT * FROM elsewhere ORDER BY topic, partition, offset",
    "read_aborted": "SELECT * FROM read_aborted ORDER BY topic, partition, offset",
}


def judge(session: SparkSession, plan: Plan, output: OutputDirectory, security: Security = PLAINTEXT) -> dict[str, Any]:
    """Reads back, compares, and writes `verdict.json`."""
    read_back(session, plan, output, security)
    verdict = compare(session, output, plan.compacted)
    write_json(output.verdict, verdict)
    return verdict


def compare(session: SparkSession, output: OutputDirectory, compacted: Sequence[str] = ()) -> dict[str, Any]:
    """The verdict on `operations` and `found`. Counts are records; each list of evidence has at most EVIDENCE rows.

    `compacted`: topics that compaction may remove records from. What is missing there is lost if there is no newer record with its key, and
    unseen or deleted if such a record may be where the partition could not be read.
    Records of transactions that were not committed are not acknowledged; `read_aborted`: readers of committed records got them.
    `left_open`: how many are in transactions without an end, if nothing is acknowledged.
    `lost`, `duplicated` and `reordered` count batches with acks=all; `without_acks_all` has the same counts of the others.
    """
    read_parquet(session, output.place_of(output.operations), SCHEMA).createOrReplaceTempView("operations")
    read_parquet(session, output.place_of(output.found), FOUND_SCHEMA).createOrReplaceTempView("found")
    topics = session.createDataFrame([(topic,) for topic in compacted], "topic string")
    topics.createOrReplaceTempView("compacted_topics")
    for name, text in views("verdict_views").items():
        session.sql(text).createOrReplaceTempView(name)

    def count(text: str) -> int:
        row = session.sql(text).first()
        return int(row[0] or 0) if row is not None else 0

    def counts(text: str) -> dict[Any, int]:
        """`text` has the columns `key` and `records`."""
        return {row["key"]: int(row["records"] or 0) for row in session.sql(text).collect()}

    def rows(text: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in session.sql(f"{text} LIMIT {EVIDENCE}").collect()]

    # Each view computes again what it uses, so what must be empty is not asked for: nothing is lost if every batch was found whole.
    found = counts("SELECT kind AS key, sum(records) AS records FROM found GROUP BY kind")
    is_settled = session.table("unsettled").isEmpty()
    has_aborts = not session.table("ends").where("op = 'abort'").isEmpty()
    excuses, unknown = (
        {} if is_settled else counts(f"SELECT kind AS key, count(*) AS records FROM {view} GROUP BY kind")
        for view in ("excuses", "unknown")
    )
    by_acks = {
        name: {} if is_settled and name == "lost" else counts(f"SELECT acks = -1 AS key, {text} GROUP BY acks = -1")
        for name, text in BY_ACKS.items()
    }
    verdict: dict[str, Any] = {
        "acknowledged": count("SELECT sum(records) FROM acknowledged"),
        **{name: found.get(kind, 0) for name, kind in OF_FOUND.items()},
        **{name: found_by.get(True, 0) for name, found_by in by_acks.items()},
        **{name: excuses.get(kind, 0) + unknown.get(kind, 0) for name, kind in OF_EXCUSES.items()},
        "compacted": 0
        if is_settled
        else count("SELECT count(*) FROM absent") - sum(by_acks["lost"].values()) - sum(unknown.values()),
        "elsewhere": count("SELECT count(*) FROM elsewhere"),
        "read_aborted": count("SELECT sum(records) FROM read_aborted") if has_aborts else 0,
    }
    if not verdict["acknowledged"]:
        verdict["left_open"] = count("SELECT sum(records) FROM left_open")
    accepted = {name: found_by.get(False, 0) for name, found_by in by_acks.items()}
    evidence = {name: rows(text) if verdict[name] or accepted.get(name) else [] for name, text in EVIDENCE_OF.items()}
    for kind in ("unread", "deleted"):
        text = f"SELECT topic, partition, offset, records FROM found WHERE kind = '{kind}' ORDER BY 1, 2, 3"
        evidence[kind] = rows(text) if kind in found else []
    return verdict | {"without_acks_all": accepted, "evidence": evidence}


def read_back(session: SparkSession, plan: Plan, output: OutputDirectory, security: Security) -> None:
    """Writes the found rows."""
    load = load_plan(plan, security)
    ends = asyncio.run(end_offsets(plan, load))
    operations = read_parquet(session, output.place_of(output.operations), SCHEMA)
    has_transactions = not operations.where("op IN ('commit', 'abort')").isEmpty()
    ranges = [
        (topic, partition, at, min(at + RANGE_RECORDS, end))
        for (topic, partition), end in sorted(ends.items())
        for at in range(plan.start_offsets[topic][partition], end, RANGE_RECORDS)
    ]
    known = {(topic, partition) for topic, partition in ends}
    unread = [
        (topic, partition, plan.start_offsets[topic][partition], None, None, None, "unread", None, None)
        for topic, count in plan.partitions.items()
        for partition in range(count)
        if (topic, partition) not in known
    ]

    def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                keyed = ranges[number][0] in load.compacted
                reader = Reader(load.bootstrap, load.topics, plan.run, load.security, has_transactions, keyed)
                yield from reader.read(*ranges[number])

    frame = session.range(0, len(ranges), 1, max(len(ranges), 1))
    found = frame.mapInArrow(read, spark_schema(FOUND_SCHEMA))
    if unread:
        found = found.unionByName(session.createDataFrame(unread, found.schema))
    found.write.mode("overwrite").parquet(uri_of(output.place_of(output.found)))


async def end_offsets(plan: Plan, load: LoadPlan) -> dict[TopicPartition, int]:
    """The high watermark of each partition of the plan. Partitions without a leader for READ_TIMEOUT_S are missing."""
    wanted = {
        TopicPartition(topic, partition) for topic, count in plan.partitions.items() for partition in range(count)
    }
    return await fetching.end_offsets(
        ClusterView(Client(fetching.CLIENT, load.security), load.bootstrap, load.topics), wanted, READ_TIMEOUT_S
    )


class BelowTheLogStart(Exception):
    """Retention or a DeleteRecords has removed the records at this offset."""


class Reader:
    """Reads one range of a partition. What was deleted since is one row; reading goes on behind it.

    `committed`: it reads as consumers of committed records do, so that only those are found. `keyed`: it also finds the newest record of
    each key.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        topics: tuple[str, ...],
        run: int,
        security: Security = PLAINTEXT,
        committed: bool = False,
        keyed: bool = False,
    ) -> None:
        self._view = ClusterView(Client(fetching.CLIENT, security), bootstrap, topics)
        self._run = run
        self._committed = committed
        self._keyed = keyed
        self._newest: dict[tuple[int, int], int] = {}
        """(Size, first 8 bytes) of a key -> the offset of its newest record."""
        self._rows: list[tuple[int, int | None, int | None, int, str]] = []
        self._loop = asyncio.new_event_loop()

    def read(self, topic: str, partition: int, begin: int, stop: int) -> Iterator[pyarrow.RecordBatch]:
        """The found rows of the offsets from `begin` to before `stop`."""
        connection: BrokerConnection | None = None
        at, progressed = begin, time.monotonic()
        try:
            while at < stop:
                kept = len(self._rows)
                patience_s = READ_TIMEOUT_S
                try:
                    if connection is None or not connection.is_open:
                        connection = self._loop.run_until_complete(self._connect(topic, partition))
                    answer = self._loop.run_until_complete(self._fetch(connection, topic, partition, at))
                    following = self._take(answer, begin, at, stop)
                    patience_s += OPEN_TRANSACTION_S
                except BelowTheLogStart:
                    following = self._skip(topic, partition, at, stop)
                except (OSError, Unreachable, MalformedRequest, KafkaError):
                    following = at
                    del self._rows[kept:]  # the answer is read again
                    if connection is not None:
                        connection.close()
                if following > at:
                    at, progressed = following, time.monotonic()
                elif time.monotonic() > progressed + patience_s:
                    self._rows.append((at, None, None, stop - at, "unread"))
                    at = stop
                else:
                    time.sleep(0.05)
                if len(self._rows) + len(self._newest) >= ROWS_AT_ONCE or at >= stop:
                    yield self._batch(topic, partition)
        finally:
            if connection is not None:
                connection.close()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def _skip(self, topic: str, partition: int, at: int, stop: int) -> int:
        """Notes what is below the log start, if that is above `at`. Returns where to go on."""
        wanted = TopicPartition(topic, partition)
        starts = self._loop.run_until_complete(fetching.end_offsets(self._view, [wanted], READ_TIMEOUT_S, EARLIEST))
        start = min(starts.get(wanted, at), stop)
        if start > at:
            self._rows.append((at, None, None, start - at, "deleted"))
        return start

    async def _connect(self, topic: str, partition: int) -> BrokerConnection:
        await self._view.start()
        return await self._view.connect(self._view.leader(TopicPartition(topic, partition)), lambda _: None)

    async def _fetch(self, connection: BrokerConnection, topic: str, partition: int, at: int) -> memoryview:
        positions = {topic: [(partition, at)]}
        frame = frames.fetch_frame(
            fetching.CLIENT, 500, 1, FETCH_BYTES, FETCH_BYTES, positions, read_committed=self._committed
        )
        return await connection.ask(frame, READ_TIMEOUT_S)

    def _take(self, answer: memoryview, begin: int, at: int, stop: int) -> int:
        """Notes what is in the answer; returns the offset after it, or `at` if it has nothing.

        A batch belongs to the range in which it starts, even if its first records were deleted since.
        """
        response = frames.fetched(answer)
        data = response.topics[0][1][0] if response.topics else None
        if data is not None and data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise BelowTheLogStart
        if response.error or data is None or data.error:
            raise ConnectionError(f"error {response.error or (data and data.error)}")
        following = at
        aborted = frames.Aborted(data.aborted_transactions or ())
        for buffer in data.records:
            for position, header in iter_batches(buffer):
                if aborted.has(header) or header.next_offset <= at or header.is_control:
                    following = max(following, header.next_offset)
                    continue
                if header.base_offset >= stop:
                    return stop
                following = header.next_offset
                if header.base_offset < begin:
                    continue
                if not crc_is_valid(buffer, position, header):
                    self._rows.append((header.base_offset, None, None, header.record_count, "corrupt"))
                    continue
                try:
                    found = stamps.read(buffer, position, header, self._run)
                    if self._keyed:
                        self._newest |= stamps.newest_of_keys(buffer, position)
                except (KafkaError, IndexError):
                    self._rows.append((header.base_offset, None, None, header.record_count, "corrupt"))
                    continue
                self._rows += [(header.base_offset + delta, None, None, 1, "corrupt") for delta in found.corrupt]
                self._rows += runs_of(found, header.base_offset)
        return min(following, stop)

    def _batch(self, topic: str, partition: int) -> pyarrow.RecordBatch:
        of_all = {"topic": topic, "partition": partition}
        names = ("offset", "producer", "first_sequence", "records", "kind")
        rows = [of_all | dict(zip(names, row, strict=True)) for row in self._rows]
        for (size, key), offset in self._newest.items():
            rows.append(of_all | {"offset": offset, "kind": "newest", "key_size": size, "key": key})
        self._rows, self._newest = [], {}
        return pyarrow.RecordBatch.from_pylist(rows, schema=FOUND_SCHEMA)


def runs_of(found: stamps.Stamps, base_offset: int) -> list[tuple[int, int, int, int, str]]:
    """The found rows of one batch, without topic and partition: (offset, producer, first sequence, records, kind)."""
    count = len(found.sequences)
    if not count:
        return []
    follows = (
        (numpy.diff(found.offset_deltas) == 1)
        & (numpy.diff(found.sequences.astype(numpy.int64)) == 1)
        & (numpy.diff(found.producers.astype(numpy.int64)) == 0)
    )
    starts = [0, *(numpy.nonzero(~follows)[0] + 1).tolist(), count]
    return [
        (
            base_offset + int(found.offset_deltas[begin]),
            int(found.producers[begin]),
            int(found.sequences[begin]),
            end - begin,
            "intact",
        )
        for begin, end in pairwise(starts)
    ]
