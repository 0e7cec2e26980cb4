"""Seeded logs to compact: records as many clients would have written them, with their times."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from broker.storage.log import Log
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, build_batch

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
SEQUENCE_MAX = 2**31 - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
FIRST_PRODUCER_ID = 4000
MARKER_KEY = struct.Struct(">hh")
MARKER_VALUE = struct.Struct(">hi")
ABORTED = struct.Struct(">hqqqq")
"""An entry of a `.txnindex`: version 0, producer id, its transaction's first and last offset, the last stable offset."""


@dataclass(frozen=True)
class Scenario:
    """One topic of one partition. `passes`: how often it was compacted before, hours ago."""

    name: str
    compressions: tuple[int, ...] = (NONE,)
    passes: int = 0
    is_transactional: bool = False
    has_records_without_key: bool = False
    batches: int = 80
    value_bytes_max: int = 80
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        """Of the topic while it is compacted."""
        own = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "segment.bytes": "3000",
            "index.interval.bytes": "500",
            "delete.retention.ms": str(HOUR_MS),
        }
        return own | self.overrides


@dataclass
class _Producer:
    producer_id: int
    is_transactional: bool
    epoch: int = 0
    next_sequence: int = 0
    begun_at: int | None = None


class Workload:
    """Writes to a log through the storage's own appends. `clock` is what the log asks for the time, `now_ms` at the end."""

    def __init__(self, scenario: Scenario, random: Random, log: Log, set_clock: Callable[[int], None]) -> None:
        self.scenario = scenario
        self.log = log
        self._random = random
        self._set_clock = set_clock
        self._keys = [b"", b"k", *(b"key-%d" % n for n in range(18)), *(b"%d " % n * 12 for n in range(10))]
        self._producers = [self._new_producer() for _ in range(3)]
        self._retired: list[_Producer] = []

    def _new_producer(self) -> _Producer:
        number = FIRST_PRODUCER_ID + self._random.randrange(10**6)
        kind = self.scenario.is_transactional and self._random.random() < 0.8
        # Sequences go over their largest number now and then.
        first = SEQUENCE_MAX - self._random.randrange(40) if self._random.random() < 0.3 else 0
        return _Producer(number, kind, next_sequence=first)

    def write(self, since_ms: int, until_ms: int) -> None:
        """Writes the scenario's batches, spread over that time. Ends all open transactions, or all but one."""
        step = (until_ms - since_ms) // self.scenario.batches
        for number in range(self.scenario.batches):
            time_ms = since_ms + number * step
            self._set_clock(time_ms)
            self._write_one(time_ms)
        for producer in [*self._producers, *self._retired]:
            if producer.begun_at is not None:
                self._end(producer, until_ms)

    def _write_one(self, time_ms: int) -> None:
        random = self._random
        at = random.randrange(len(self._producers) + 1)
        if at == len(self._producers):
            self._append(None, time_ms)
            return
        producer = self._producers[at]
        if producer.begun_at is not None and random.random() < 0.3:
            self._end(producer, time_ms)
            return
        if producer.begun_at is None and random.random() < 0.1:
            producer.epoch, producer.next_sequence = producer.epoch + 1, 0
        self._append(producer, time_ms)
        if random.random() < 0.12:
            # Nothing more of it: later records replace what its last batch has.
            self._retired.append(producer)
            self._producers[at] = self._new_producer()

    def _append(self, producer: _Producer | None, time_ms: int) -> None:
        random = self._random
        records = [self._record(time_ms) for _ in range(random.choice((1, 1, 2, 3, 5, 12)))]
        if producer is not None:
            # Of a producer whose last records have no time Kafka knows nothing after a restart (`ProducerState.expire`).
            records[0] = (*records[0][:3], time_ms)
        numbers: dict[str, int] = {"compression": random.choice(self.scenario.compressions)}
        if producer is not None:
            numbers |= {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.next_sequence,
                "attributes": TRANSACTIONAL_BIT if producer.is_transactional else 0,
            }
            producer.next_sequence = (producer.next_sequence + len(records)) % (SEQUENCE_MAX + 1)
        appended = self.log.append_as_leader(build_batch(records, **numbers), 0)
        if producer is not None and producer.is_transactional and producer.begun_at is None:
            producer.begun_at = appended.first_offset

    def _record(self, time_ms: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]:
        random = self._random
        key: bytes | None = random.choice(self._keys)
        if self.scenario.has_records_without_key and random.random() < 0.1:
            key = None
        value: bytes | None = random.randbytes(random.randrange(self.scenario.value_bytes_max))
        if random.random() < 0.25:
            value = None
        headers: list[tuple[str, bytes | None]] = [("h", b"1"), ("none", None)] if random.random() < 0.2 else []
        # Clients' clocks differ, and a time of -1 is "none". A segment without any time is as young as its file, and with a minimum
        # age neither cleaner would begin.
        has_time = random.random() >= 0.03 or "min.compaction.lag.ms" in self.scenario.overrides
        own_time = time_ms + random.randrange(-MINUTE_MS, MINUTE_MS) if has_time else -1
        return key, value, headers, own_time

    def _end(self, producer: _Producer, time_ms: int) -> None:
        """A transaction's marker."""
        assert producer.begun_at is not None
        is_commit = self._random.random() < 0.5
        offset = self.log.log_end_offset
        marker = build_batch(
            [(MARKER_KEY.pack(0, int(is_commit)), MARKER_VALUE.pack(0, 0), (), time_ms)],
            base_offset=offset,
            leader_epoch=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        )
        self.log.append_as_follower(memoryview(marker))
        producer.begun_at = None


SCENARIOS = (
    Scenario("plain"),
    Scenario("plain-again", passes=2),
    Scenario("gzip", (GZIP,)),
    Scenario("snappy", (SNAPPY,)),
    Scenario("lz4", (LZ4,)),
    Scenario("zstd", (ZSTD,)),
    Scenario("mixed-again", (NONE, GZIP, SNAPPY, LZ4, ZSTD), passes=3),
    Scenario("append-time", (NONE, ZSTD), passes=1, overrides={"message.timestamp.type": "LogAppendTime"}),
    Scenario("transactions", is_transactional=True, batches=150),
    Scenario("transactions-again", (NONE, LZ4), is_transactional=True, passes=2),
    Scenario("without-keys", has_records_without_key=True, passes=1),
    Scenario("young", overrides={"min.compaction.lag.ms": str(50 * MINUTE_MS)}),
    Scenario("large", batches=60, value_bytes_max=60_000, overrides={"segment.bytes": "1000000"}),
)
