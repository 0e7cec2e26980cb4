"""The same logs compacted by a real Kafka 3.9 and by ours: LOG-4, FMT-3.

Seeded logs are written by our storage, some compacted hours ago and written on. A copy is opened and cleaned by a Kafka with its
own LogCleaner, the other by ours at Kafka's time, which its new delete horizons tell. Then both have

- the same segment files, and in them the same batches;
- an uncompressed batch, and any that lost no record, is the same to the byte, CRC included;
- a compressed batch that was built anew has the same header but for length and CRC, and unpacks to the same bytes: the
  compressors are other libraries, or others' versions;
- the same last entry in the time index; Kafka's cleaner writes fewer entries between (one for each buffer of some 256 KiB),
  so the indexes are not compared to the byte;
- the same producer snapshots, and the same `cleaner-offset-checkpoint`.

Left out, since it is meant to differ: a producer whose last record is older than `producer.id.expiration.ms` is forgotten by
Kafka's restart at once, by ours an hour later (`ProducerState.expire`), and its emptied last batch goes then.

OTTLA_COMPACTION_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random, randrange

import pytest
from confluent_kafka.admin import NewTopic

from broker.settings.config import TopicConfig
from broker.storage.checkpoints import CLEANED, HIGH_WATERMARKS, decode_offsets, encode_offsets
from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import BatchHeader, iter_batches, unpacked
from protocol.types import TopicPartition
from tests.support.compaction_workloads import HOUR_MS, MINUTE_MS, SCENARIOS, Scenario, Workload
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import SwappableBroker
from tests.support.topics import create_topics
from tools.inspect.disk_files import time_index

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

SEED = "OTTLA_COMPACTION_SEED"
OVERRIDES = {
    "log.cleaner.backoff.ms": "100",
    "controlled.shutdown.enable": "false",
    "auto.leader.rebalance.enable": "false",
}
EARLIER_PASSES_HOURS = 2
SIZE_MAX = 2**28

Batch = tuple[BatchHeader, bytes]
Contents = dict[str, dict[str, list[Batch]]]
"""Scenario's name -> segment file -> its batches."""


class SetClock:
    """Says what it is told."""

    def __init__(self) -> None:
        self.ms = 0

    def wall_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def set(self, ms: int) -> None:
        self.ms = ms


class OurBroker:
    """The storage of a broker, over a directory, with a cleaner; a log is only compacted when it is asked for."""

    def __init__(self, data: Path) -> None:
        self.clock = SetClock()
        self.manager = LogManager([str(data)], TopicConfig(), FileSystem(), self.clock)
        self.manager.high_watermark_of = self._log_end
        settings = CleanerSettings()
        self._cleaner = LogCleaner(self.manager, self.clock, settings, self._complain)

    def _log_end(self, tp: TopicPartition) -> int:
        found = self.manager.get(tp)
        assert found is not None
        return found.log_end_offset

    def _complain(self, kind: str, **fields: object) -> None:
        raise AssertionError((kind, fields))

    async def clean(self, scenario: Scenario, at_ms: int, **overrides: str) -> None:
        """One pass."""
        tp = TopicPartition(scenario.name, 0)
        config = scenario.config | {name.replace("_", "."): value for name, value in overrides.items()}
        self.manager.get_or_create(tp, None, config)
        self.clock.set(at_ms)
        assert await self._cleaner.clean_next()
        assert not await self._cleaner.clean_next()
        # Only what is written meanwhile is not to be compacted.
        self.manager.get_or_create(tp, None, config | {"cleanup.policy": "delete"})


async def write(data: Path, seed: int, now_ms: int) -> None:
    """All scenarios' logs; those with passes are compacted and written on in between."""
    ours = OurBroker(data)
    await ours.manager.start()
    for scenario in SCENARIOS:
        random = Random(f"{seed} {scenario.name}")
        log = ours.manager.get_or_create(
            TopicPartition(scenario.name, 0), None, scenario.config | {"cleanup.policy": "delete"}
        )
        workload = Workload(scenario, random, log, ours.clock.set)
        turns = scenario.passes + 1
        length = (EARLIER_PASSES_HOURS + 1) * HOUR_MS // turns
        began = now_ms - turns * length
        for turn in range(turns):
            ended = began + length
            workload.write(began, ended - MINUTE_MS)
            if turn < scenario.passes:
                # So their tombstones' time ends before or after the next pass, or that of Kafka.
                retention = random.choice((10, 50, 100, 150, 300)) * MINUTE_MS
                await ours.clean(scenario, ended, delete_retention_ms=str(retention))
            began = ended
    ends = {log.topic_partition: log.log_end_offset for log in ours.manager.logs()}
    await ours.manager.shutdown()
    (data / HIGH_WATERMARKS).write_bytes(encode_offsets(ends))


def checkpoint(data: Path) -> dict[str, int]:
    """`cleaner-offset-checkpoint`: topic -> up to where it is clean."""
    path = data / CLEANED
    return {tp.topic: offset for tp, offset in decode_offsets(path.read_bytes()).items()} if path.exists() else {}


def contents(data: Path) -> Contents:
    return {
        scenario.name: {path.name: list(batches(path)) for path in sorted((data / f"{scenario.name}-0").glob("*.log"))}
        for scenario in SCENARIOS
    }


def batches(path: Path) -> Iterator[Batch]:
    data = path.read_bytes()
    end = 0
    for at, header in iter_batches(data):
        end = at + header.size_in_bytes
        yield header, data[at:end]
    assert end == len(data)


def horizons(files: dict[str, list[Batch]]) -> set[int]:
    found = {header.delete_horizon_ms for rows in files.values() for header, _ in rows}
    return {horizon for horizon in found if horizon is not None}


def let_kafka_clean(broker: SwappableBroker, topics: dict[str, int]) -> None:
    """Runs Kafka until it has cleaned each log once, then kills it."""
    before = checkpoint(broker.data)
    broker.start("Kafka", topics)

    def is_done() -> bool:
        after = checkpoint(broker.data)
        return all(after.get(scenario.name, 0) > before.get(scenario.name, 0) for scenario in SCENARIOS)

    eventually(is_done, "Kafka has compacted all logs")
    broker.stop(signal.SIGKILL)


async def clean_ours(data: Path, times_ms: dict[str, int]) -> None:
    ours = OurBroker(data)
    await ours.manager.start()
    for scenario in SCENARIOS:
        await ours.clean(scenario, times_ms[scenario.name])
    await ours.manager.shutdown()


def without_packing(batch: Batch) -> tuple[BatchHeader, bytes]:
    header, data = batch
    plain = unpacked(data, 0, header, size_max=SIZE_MAX, too_large=ErrorCode.CORRUPT_MESSAGE)
    return header._replace(crc=0, batch_length=0), plain


def compare(
    source: dict[str, list[Batch]], ours: dict[str, list[Batch]], kafkas: dict[str, list[Batch]]
) -> Counter[str]:
    """Fails at the first batch that differs. Returns how many segments and batches were alike, and how."""
    assert list(ours) == list(kafkas)
    written = {data for rows in source.values() for _, data in rows}
    found: Counter[str] = Counter()
    for name, mine in ours.items():
        theirs = kafkas[name]
        assert [header.base_offset for header, _ in mine] == [header.base_offset for header, _ in theirs], name
        is_same = True
        for one, other in zip(mine, theirs, strict=True):
            assert without_packing(one) == without_packing(other), name
            if one[0].compression and one[1] not in written:
                assert other[1] not in written
                found["batches by content"] += 1
                is_same = is_same and one[1] == other[1]
            else:
                assert one[1] == other[1], (name, one[0])
                found["batches by bytes"] += 1
                found["emptied batches"] += one[0].record_count == 0
                found["batches with a horizon"] += one[0].delete_horizon_ms is not None
        found["segments"] += 1
        found["segments equal to the byte"] += is_same
    return found


def last_times(directory: Path, names: Sequence[str]) -> dict[str, tuple[int, int] | None]:
    found = {}
    for name in names:
        base = name.removesuffix(".log")
        entries = time_index(directory / f"{base}.timeindex", int(base)) or [None]
        found[base] = entries[-1]
    return found


def snapshots(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.snapshot")}


def aborted_transactions(directory: Path) -> dict[str, bytes]:
    return {path.name: data for path in directory.glob("*.txnindex") if (data := path.read_bytes())}


def kafkas_times(source: Contents, kafkas: Contents, otherwise_ms: int) -> dict[str, int]:
    """When Kafka cleaned each log, as far as its new delete horizons tell."""
    times_ms = {}
    for name, files in kafkas.items():
        new = horizons(files) - horizons(source[name])
        assert len(new) <= 1, f"{name} was cleaned more than once"
        times_ms[name] = new.pop() - HOUR_MS if new else otherwise_ms
    return times_ms


def assert_alike(data: Path, peer_data: Path, source: Contents) -> Counter[str]:
    """Of all scenarios."""
    ours, kafkas = contents(data), contents(peer_data)
    total: Counter[str] = Counter()
    for name in ours:
        found = compare(source[name], ours[name], kafkas[name])
        print(f"{name}: {dict(found)}")
        total += found
        mine, theirs = data / f"{name}-0", peer_data / f"{name}-0"
        assert last_times(mine, list(ours[name])) == last_times(theirs, list(ours[name])), name
        assert snapshots(mine) == snapshots(theirs), name
        assert aborted_transactions(mine) == aborted_transactions(theirs), name
        total["lists of aborted transactions"] += len(aborted_transactions(mine))
    assert checkpoint(data) == checkpoint(peer_data)
    return total


@pytest.mark.timeout(180)
def test_kafka_and_ottla_leave_the_same_log(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED) or randrange(10**9))
    print(f"{SEED}={seed}")
    data, peer_data = tmp_path / "ours", tmp_path / "kafkas"
    with SwappableBroker(tmp_path / "cluster", kafka_tools, OVERRIDES) as broker:
        broker.start("ottla")
        wanted = [NewTopic(scenario.name, 1, 1, config=scenario.config) for scenario in SCENARIOS]
        create_topics(broker.bootstrap_servers, *wanted)
        broker.stop(signal.SIGTERM)
        now_ms = int(time.time() * 1000)
        asyncio.run(write(broker.data, seed, now_ms))
        source = contents(broker.data)
        shutil.copytree(broker.data, data)
        let_kafka_clean(broker, {scenario.name: 1 for scenario in SCENARIOS})
        shutil.copytree(broker.data, peer_data)
    asyncio.run(clean_ours(data, kafkas_times(source, contents(peer_data), now_ms)))
    total = assert_alike(data, peer_data, source)
    print(f"all: {dict(total)}")
    assert min(total["emptied batches"], total["batches with a horizon"], total["batches by content"]) > 0
    assert total["lists of aborted transactions"] > 0
