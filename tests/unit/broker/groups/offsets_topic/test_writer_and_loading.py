"""Appending to and loading from `__consumer_offsets`: acknowledged when replicated (INV-23), loaded in slices (BUG-25)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.coordination.ownership import partition_for
from broker.groups.group.messages import CommittedOffset, GroupMetadata
from broker.groups.offsets_topic import writer as offsets_writer
from broker.groups.offsets_topic.loading import OffsetsReader, StoredGroup
from broker.groups.offsets_topic.records import decode_key, encode_group_key, encode_offset_key
from broker.groups.offsets_topic.writer import Appended, OffsetsWriter, WriterSettings
from broker.process.clock import SystemClock
from broker.storage.log import LogDirFailed, WouldBlock
from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch, decode_records, iter_batches
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tests.support.replica_cluster import Cluster

TP = TopicPartition(OFFSETS_TOPIC, 3)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("consumer", 2, None, None, 5, ())
CUT = "the value of a group: the frame ends inside a string's length"
Loaded = dict[str, tuple[GroupMetadata | None, dict[TopicPartition, CommittedOffset]]]


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("hello", 99162322),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        ("😀", 0xD83D * 31 + 0xDE00),
    ],
)
@pytest.mark.parametrize("partitions", [1, 50, 7])
def test_the_partition_of_a_group(group_id: str, java_hash: int, partitions: int) -> None:
    """Utils.abs(String.hashCode()) % partitions, over UTF-16."""
    assert partition_for(group_id, partitions) == (0 if java_hash == -(2**31) else abs(java_hash)) % partitions


pytestmark = pytest.mark.usefixtures("fetchers_are_driven_by_hand")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """No broker runs yet."""
    cluster = Cluster(tmp_path, tp=TP)
    yield cluster
    cluster.close()


async def lead(cluster: Cluster, **overrides: str) -> None:
    """Broker 1 leads the partition; broker 2 follows."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2), overrides={"cleanup.policy": "compact", **overrides})
    await cluster.replicate()


@pytest.fixture
def led(cluster: Cluster, runner: asyncio.Runner) -> Cluster:
    runner.run(lead(cluster))
    return cluster


def writer_of(cluster: Cluster, broker: int = 1, **settings: int) -> OffsetsWriter:
    return OffsetsWriter(cluster.nodes[broker].manager.appends, cluster.time, WriterSettings(**settings))


def reader_of(cluster: Cluster, broker: int = 1, buffer_bytes: int = 2**20) -> OffsetsReader:
    return OffsetsReader(cluster.nodes[broker].manager, cluster.time, buffer_bytes)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, 1, "", 1000)


async def load(reader: OffsetsReader, is_current: Callable[[], bool] = lambda: True) -> Loaded | None:
    loaded: Loaded = {}

    def sink(group: StoredGroup) -> None:
        group_id, metadata, offsets = group
        assert group_id not in loaded
        loaded[group_id] = (metadata, {tp: offsets.get(tp) for tp in offsets})

    return loaded if await reader.load(TP.partition, is_current, sink) else None


def keys_in(cluster: Cluster, broker: int = 1) -> list[list[object]]:
    """The keys, batch by batch."""
    log = cluster.nodes[broker].partition(TP).log
    data = b"".join(bytes(part) for part in log.read(0, 2**24, log.log_end_offset, True).records)
    return [
        [(decode_key(record.key), record.value is None) for record in decode_records(data, position)]
        for position, _ in iter_batches(data)
    ]


async def test_a_commit_is_acknowledged_when_it_is_replicated(led: Cluster) -> None:
    """INV-23. The next leader loads what was acknowledged."""
    answers: list[tuple[str, ErrorCode, int]] = []
    writer = writer_of(led)
    writer.store_group(TP.partition, "g", GROUP, lambda error: answers.append(("group", error, -1)))
    writer.commit(TP.partition, "g", {T0: at(5), T1: at(6)}, lambda e, base: answers.append(("commit", e, base)))
    assert answers == []
    await led.replicate(2, rounds=2)
    assert answers == [("group", ErrorCode.NONE, -1), ("commit", ErrorCode.NONE, 1)]
    led.lead(2, 1, (1, 2), replicas=(1, 2))
    assert await load(reader_of(led, 2)) == {"g": (GROUP, {T0: at(5), T1: at(6)})}
    assert await load(reader_of(led)) is None, "not led here any more"


class Broken:
    """A replica manager with a bug."""

    def append(self, *_: object, **__: object) -> None:
        raise RuntimeError("a bug")


UNSTORABLE = CommittedOffset(5, 1, "", 1000, 2**63)
"""Expires at a time that no record can hold."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda writer, respond: writer.commit(0, "g", {T0: at(5)}, respond),
        lambda writer, respond: writer.commit(0, "g", {T0: UNSTORABLE}, respond),
        lambda writer, respond: writer.store_group(0, "g", GROUP, lambda error: respond(error, -1)),
        lambda writer, respond: writer.store_group(0, "g", replace(GROUP, generation=2**31), lambda e: respond(e, -1)),
        lambda writer, respond: writer.remove(0, "g", [T0, T1], respond, group_keys=[encode_group_key("g")]),
        lambda writer, respond: writer.remove(0, "g", [TopicPartition("t", 2**31)], respond),
    ],
    ids=["commit", "unstorable-commit", "group", "unstorable-group", "removal", "unstorable-removal"],
)
def test_an_unexpected_exception_is_answered_with_an_error(ask: Callable[[OffsetsWriter, Appended], None]) -> None:
    """The caller has marked the write as pending, and waits for its outcome."""
    answers: list[tuple[ErrorCode, int]] = []
    writer = OffsetsWriter(cast(Any, Broken()), SystemClock(), WriterSettings())
    ask(writer, lambda error, base: answers.append((error, base)))
    assert answers == [(ErrorCode.UNKNOWN_SERVER_ERROR, -1)]


@pytest.mark.parametrize("compression", range(5))
async def test_batches_are_compressed_as_set(led: Cluster, compression: int) -> None:
    """`offsets.topic.compression.codec`."""
    writer = writer_of(led, compression=compression)
    writer.commit(TP.partition, "g", {T0: at(5), T1: at(6)}, lambda error, base: None)
    log = led.nodes[1].partition(TP).log
    (header,) = (header for _, header in iter_batches(bytes(log.read(0, 2**20, 2, True).records[0])))
    assert header.compression == compression
    assert await load(reader_of(led)) == {"g": (None, {T0: at(5), T1: at(6)})}


async def test_offsets_that_are_too_large_for_a_batch_are_refused(cluster: Cluster) -> None:
    await lead(cluster, **{"max.message.bytes": "500"})
    answers: list[ErrorCode] = []
    writer = writer_of(cluster)
    many = {TopicPartition("t", n): at(n) for n in range(20)}
    writer.commit(TP.partition, "g", many, lambda error, base: answers.append(error))
    writer.store_group(TP.partition, "g" * 1_000, GROUP, answers.append)
    writer.commit(TP.partition, "g" * 40_000, {T0: at(1)}, lambda error, base: answers.append(error))
    writer.store_group(TP.partition, "g" * 40_000, GROUP, answers.append)
    assert answers == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert cluster.nodes[1].partition(TP).log.log_end_offset == 0


class Refusing:
    """A replica manager that answers every append with one error."""

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def append(
        self, acks: int, timeout_ms: int, entries: object, respond: Callable[[object], None], *, origin: AppendOrigin
    ) -> None:
        assert (acks, timeout_ms, origin) == (-1, 2_000, AppendOrigin.COORDINATOR)
        result = type("Result", (), {"error": int(self.error), "base_offset": -1})
        respond([result])


ERRORS = [
    # the append's error, the group's, the committer's (Kafka's GroupMetadataManager)
    ("NONE", "NONE", "NONE"),
    ("UNKNOWN_TOPIC_OR_PARTITION", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE"),
    ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE"),
    ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE"),
    ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR", "NOT_COORDINATOR"),
    ("KAFKA_STORAGE_ERROR", "NOT_COORDINATOR", "NOT_COORDINATOR"),
    ("REQUEST_TIMED_OUT", "REBALANCE_IN_PROGRESS", "REQUEST_TIMED_OUT"),
    ("MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR", "INVALID_COMMIT_OFFSET_SIZE"),
    ("RECORD_LIST_TOO_LARGE", "UNKNOWN_SERVER_ERROR", "INVALID_COMMIT_OFFSET_SIZE"),
    ("INVALID_TIMESTAMP", "INVALID_TIMESTAMP", "INVALID_TIMESTAMP"),
]


@pytest.mark.parametrize(("error", "to_group", "to_committer"), ERRORS)
def test_errors_of_appends(error: str, to_group: str, to_committer: str) -> None:
    """`offsets.commit.timeout.ms` is the time-out of the append."""
    writer = OffsetsWriter(Refusing(ErrorCode[error]), SystemClock(), WriterSettings(commit_timeout_ms=2_000))
    told: list[str] = []
    writer.store_group(0, "g", GROUP, lambda error: told.append(error.name))
    writer.commit(0, "g", {T0: at(1)}, lambda error, base: told.append(error.name))
    writer.remove(0, "g", [T0], lambda error, base: told.append(error.name))
    assert told == [to_group, to_committer, error]


async def test_tombstones(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_writer, "BATCH_BYTES_MAX", 45)
    await lead(cluster)
    writer = writer_of(cluster)
    answers: list[tuple[ErrorCode, int]] = []
    partitions = [TopicPartition("topic", n) for n in range(5)]
    writer.commit(TP.partition, "g", {tp: at(1) for tp in partitions}, lambda error, base: None)
    writer.store_group(TP.partition, "g", GROUP, lambda error: None)
    writer.remove(TP.partition, "g", partitions[:3], lambda *answer: answers.append(answer))
    assert answers == []
    await cluster.replicate(2, rounds=2)
    assert answers == [(ErrorCode.NONE, 6)]
    assert await load(reader_of(cluster)) == {"g": (GROUP, {tp: at(1) for tp in partitions[3:]})}
    writer.remove(
        TP.partition, "g", partitions[3:], lambda *answer: answers.append(answer), group_keys=[encode_group_key("g")]
    )
    writer.remove(TP.partition, "g", [], lambda *answer: answers.append(answer))
    assert answers[1:] == [(ErrorCode.NONE, -1)], "nothing to write is written at once"
    await cluster.replicate(2, rounds=2)
    assert answers[2:] == [(ErrorCode.NONE, 9)]
    assert await load(reader_of(cluster)) == {}
    assert [len(batch) for batch in keys_in(cluster)[2:]] == [2, 1, 3]
    assert all(is_tombstone for batch in keys_in(cluster)[2:] for _, is_tombstone in batch)


def fill(cluster: Cluster, commits: int, batch: int = 10) -> None:
    """Offsets of 100 groups, straight into the leader's log."""
    log = cluster.nodes[1].partition(TP).log
    records = []
    for number in range(commits):
        key = encode_offset_key(f"group-{number % 100}", TopicPartition("t", number // 100))
        records.append((key, b"\x00\x03" + bytes(22), (), 1000))
        if len(records) == batch:
            log.append_as_leader(build_batch(records), 0)
            records = []


async def test_other_work_runs_during_a_load(cluster: Cluster) -> None:
    """NET-4. Time advances each time that the reader looks at the clock."""

    class Ticking:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 0.0005
            return self.now

        wall_ms = staticmethod(lambda: 1000)

    await lead(cluster)
    fill(cluster, 20_000)
    reader = OffsetsReader(cluster.nodes[1].manager, Ticking(), 50_000)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    turn()
    loaded = await load(reader)
    assert loaded is not None
    assert sum(len(offsets) for _, offsets in loaded.values()) == 20_000
    assert turns > 100


@pytest.mark.parametrize("pauses", [0, 1, 3, 8])
async def test_a_load_that_is_no_longer_wanted_stops(led: Cluster, pauses: int) -> None:
    """At each pause: another leader may write to the partition by then (LAI-5)."""
    fill(led, 2_000)
    asked = 0

    def is_current() -> bool:
        nonlocal asked
        asked += 1
        return asked <= pauses

    assert await load(reader_of(led, buffer_bytes=5_000), is_current) is None
    assert asked == pauses + 1


async def test_a_broker_that_stops_leading_stops_loading(led: Cluster) -> None:
    fill(led, 2_000)
    loading = asyncio.create_task(load(reader_of(led, buffer_bytes=5_000)))
    await asyncio.sleep(0)
    led.nodes[1].partition(TP).stop()
    assert await loading is None


async def test_a_partition_without_records_and_one_that_is_not_here(led: Cluster) -> None:
    assert await load(reader_of(led)) == {}
    assert not await reader_of(led).load(4, lambda: True, lambda *_: None)


async def test_cold_pages_are_read_in_a_thread(led: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(led, 1_000)
    log = led.nodes[1].partition(TP).log
    cold_reads: list[int] = []
    read = log.read

    def cold(*arguments: object) -> object:
        raise WouldBlock(log.segments[0], lambda: None)

    async def read_cold(offset: int, *arguments: object) -> object:
        cold_reads.append(offset)
        return read(offset, *arguments)

    monkeypatch.setattr(log, "read", cold)
    monkeypatch.setattr(log, "read_cold", read_cold)
    loaded = await load(reader_of(led, buffer_bytes=20_000))
    assert loaded is not None
    assert len(loaded) == 100
    assert len(cold_reads) > 2


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (LogDirFailed("/data", OSError("broken")), False),
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), False),
        (KafkaError(ErrorCode.CORRUPT_MESSAGE), True),
    ],
)
async def test_a_log_that_cannot_be_read(
    led: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception, is_told: bool
) -> None:
    """A disk that fails takes its replicas with it (LOG-6); damage must not pass for a group without offsets (INV-23)."""
    fill(led, 1_000)
    node = led.nodes[1]

    def read(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(node.partition(TP).log, "read", read)
    if is_told:
        with pytest.raises(KafkaError):
            await load(reader_of(led))
    else:
        assert await load(reader_of(led)) is None


async def test_records_of_unknown_versions_are_skipped_and_logged_once(
    led: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(led)
    strange = [(b"\x00\x09later", b"?"), (encode_offset_key("g", T0), b"\x00\x09"), (b"\x00\x09more", None)]
    writer.append(TP.partition, [*strange, (encode_group_key("h"), b"\x00\x03")], lambda error, base: None)
    writer.commit(TP.partition, "g", {T1: at(6)}, lambda error, base: None)
    with caplog.at_level(logging.WARNING):
        assert await load(reader_of(led)) == {"g": (None, {T1: at(6)})}
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "skipped 2 keys of version 9, which stay in the log: written by another version of the broker",
        "skipped 1 committed offsets of version 9, which stay in the log: written by another version of the broker",
        "skipped 1 groups that cannot be read, which stay in the log: " + CUT,
    ]
    assert led.nodes[1].partition(TP).log.log_end_offset == 5
