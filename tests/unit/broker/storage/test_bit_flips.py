"""One flipped bit at some thousand places of a broker's directory, found after an unclean stop (FLT-27).

OTTLA_FLIPS=n tries n places besides all headers. Each start must open the logs, or say clearly why it does not. What is served:

log            At and above the recovery point, the log ends before the broken batch; only a wrong epoch of the log's last batch
               is not detected, as in Kafka. Below the recovery point, neither a start (LOG-2) nor a fetch checks the CRC, as in
               Kafka. Clients check it, and a follower refuses the batch (REP-9). A wrong length is CORRUPT_MESSAGE.
indexes        A broken index is rebuilt, or makes no difference; every read is right.
checkpoints    One that cannot be parsed counts as missing. Nothing checks the numbers, as in Kafka: with a wrong log start, fewer
               records are served, but never wrong ones.
snapshots      They have a CRC: a broken one is not used.
topic ids      An id with a wrong bit still names its topic, and its log stays in use.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from broker.storage.directories.log_directory import META, LogDirectoryError
from broker.storage.log import ASSIGNED, Log
from broker.storage.log_manager import LogManager
from protocol.errors import KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, crc_is_valid, iter_batches
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.crash_points import Workload
from tests.support.logs import SMALL, log_of, open_at, started
from tests.support.thorough import exhaustive
from tools.sim.world.disk import MemoryDisk

LED = TopicPartition("led", 0)
FOLLOWED = TopicPartition("followed", 3)
FLIPS = int(os.environ.get("OTTLA_FLIPS", "1500"))
TOPIC_IDS = {LED: "rgmBuxmSTYeWd-0SyDUM3w", FOLLOWED: "qK2jlmhTQcuDVtQ7zJ_nNw"}
CLUSTER = "Wxyz0123456789Wxyz0123"

EPOCH_AT = 12
"""Byte of a batch where its leader epoch starts."""

Stored = set[tuple[TopicPartition, bytes]]


def filled() -> tuple[MemoryDisk, Stored, dict[TopicPartition, int]]:
    """A broker's directory with all kinds of files, all batches ever appended, and the recovery points."""
    work = Workload(7, SMALL, losses=())

    async def scenario() -> None:
        await work.manager.start()
        work.manager.log_directories.ensure_meta(1, CLUSTER)
        for tp, topic_id in TOPIC_IDS.items():
            await work.create(tp, topic_id)
        for epoch in (1, 2, 5):
            work.lead(LED, epoch)
            work.append(LED, 6, epoch=epoch)
            work.append(FOLLOWED, 4, epoch=epoch, as_follower=True)
        work.delete_records(LED, 3)
        await work.flush(LED)
        await work.flush(FOLLOWED)
        await work.checkpoint()
        await work.write_marks()
        work.append(LED, 7, epoch=5)
        work.append(FOLLOWED, 7, epoch=5, as_follower=True)

    run(scenario())
    stored = {(tp, one) for tp in (LED, FOLLOWED) for one in work.life(tp).versions[-1].values()}
    return work.disk.after_kill(), stored, {tp: work.log(tp).recovery_point for tp in (LED, FOLLOWED)}


def places(disk: MemoryDisk) -> Iterator[tuple[str, int]]:
    """(path, position of a bit) for every byte of headers and small files, and for a sample of the other bytes."""
    random = Random(27)
    everywhere: list[tuple[str, int]] = []
    for path, inode in sorted(disk.names.items()):
        if inode is None or not inode.content:
            continue
        content = bytes(inode.content)
        if path.endswith(".log"):
            for position, _ in iter_batches(content):
                yield from ((path, (position + at) * 8 + random.randrange(8)) for at in range(HEADER_SIZE))
        elif not path.endswith(".lock"):
            yield from ((path, at * 8 + random.randrange(8)) for at in range(len(content)))
        everywhere += [(path, bit) for bit in range(len(content) * 8)]
    yield from random.sample(everywhere, min(FLIPS, len(everywhere)))


@exhaustive
def test_a_flipped_bit_anywhere_never_serves_a_wrong_record(one_in: int, capsys: pytest.CaptureFixture[str]) -> None:
    disk, stored, points = filled()
    tried = refused = 0
    logging.disable(logging.CRITICAL)
    try:
        for path, bit in islice(places(disk), 0, None, one_in):
            broken = disk.after_kill()
            broken.corrupt(path, bit // 8, 1 << bit % 8)
            manager = started(broken)
            tried += 1
            try:
                manager.log_directories.check_meta(1, CLUSTER)
            except LogDirectoryError:
                refused += path.endswith(META)
                continue
            assert {log.topic_partition for log in manager.logs()} == TOPIC_IDS.keys()
            for log in manager.logs():
                _tell(manager, log)
                run(_look(log, stored, points[log.topic_partition], path, bit, disk.content(path)))
    finally:
        logging.disable(logging.NOTSET)
    with capsys.disabled():
        print(f"\n{tried} flipped bits, {refused} starts refused")
    assert tried > 2000 // one_in


def _tell(manager: LogManager, log: Log) -> None:
    """Opens the logs as LeaderAndIsr does, with the topic ids from ZooKeeper."""
    topic_id = TOPIC_IDS[log.topic_partition]
    assert manager.is_of(log.topic_partition, topic_id)
    assert manager.get_or_create(log.topic_partition, topic_id, {}) is log
    assert log.topic_id == topic_id


async def _look(log: Log, stored: Stored, recovery_point: int, path: str, bit: int, intact: bytes) -> None:
    """Reads from every offset, as fetches do. Only below the recovery point may the bytes differ from those appended."""
    is_mine = path.startswith(log.directory + "/") and path.endswith(".log")
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            result = await log.read_cold(offset, 2**20, log.log_end_offset, True)
        except KafkaError:
            assert is_mine, f"{path}, bit {bit}: offset {offset} of {log.directory}"
            continue
        data = b"".join(bytes(part) for part in result.records)
        try:
            batches = list(iter_batches(data))
        except KafkaError:
            assert is_mine, f"{path}, bit {bit}: a reader sees that offset {offset} of {log.directory} is broken"
            continue
        for position, header in batches:
            one = data[position : position + header.size_in_bytes]
            if (log.topic_partition, one) not in stored:
                assert is_mine, f"{path}, bit {bit}: another batch at {header.base_offset}"
                unread = _is_below(recovery_point, intact, bit) or _is_epoch_of_the_last_batch(intact, bit)
                seen = not crc_is_valid(data, position, header)
                assert unread, f"{path}, bit {bit}: at {header.base_offset}, above the recovery point {recovery_point}"
                assert seen or _has_no_crc(intact, bit), f"{path}, bit {bit}: the CRC does not tell"


def _is_below(recovery_point: int, intact: bytes, bit: int) -> bool:
    """The broken batch is below the recovery point, where a start checks nothing."""
    return any(
        at <= bit // 8 < at + header.size_in_bytes and header.next_offset <= recovery_point
        for at, header in iter_batches(intact)
    )


def _is_epoch_of_the_last_batch(content: bytes, bit: int) -> bool:
    """Nothing contradicts it: it may be the first batch of an epoch that the checkpoint does not have yet."""
    at = list(iter_batches(content))[-1][0]
    return at + EPOCH_AT <= bit // 8 < at + ASSIGNED.size


def _has_no_crc(content: bytes, bit: int) -> bool:
    """The bit is in the first 16 bytes of a batch: base offset, length, leader epoch."""
    return any(at <= bit // 8 < at + ASSIGNED.size for at, _ in iter_batches(content))


def test_a_follower_refuses_a_broken_batch_and_appends_nothing_of_it() -> None:
    """REP-9: the leader may serve a broken batch from below its recovery point, so the follower checks it."""
    disk, _, _ = filled()
    first = log_of(started(disk), LED).segments[0]
    data = bytes(first.read(0, first.size, may_block=True))
    start, header = list(iter_batches(data))[1]
    for bit in range((start + 16) * 8, (start + header.size_in_bytes) * 8, 5):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        follower = open_at(MemoryDisk())
        with pytest.raises(KafkaError):
            follower.append_as_follower(memoryview(broken))
        assert follower.log_end_offset == 0
        follower.append_as_follower(memoryview(data))
        assert follower.log_end_offset == first.next_offset
