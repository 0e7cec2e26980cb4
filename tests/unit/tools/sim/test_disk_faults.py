"""The simulated disk fails as a disk of Linux does, and a bit flips only where Kafka promises to notice it."""

from __future__ import annotations

import errno
from random import Random

import pytest

from broker.storage.checkpoints import decode_offsets
from protocol.kafka.record_batch import build_batch, crc_is_valid, iter_batches, patch
from protocol.types import LeaderAndIsr, TopicPartition
from tools.sim.faults import flip_a_bit, flip_a_bit_beside_the_logs
from tools.sim.world.disk import Loss, MemoryDisk

LOG = f"/data/topic-0/{0:020d}.log"


def test_the_lowest_free_descriptor_is_given_next() -> None:
    disk = MemoryDisk()
    first, second, third = (disk.open(f"/{name}") for name in "abc")
    disk.close(second)
    disk.close(first)
    assert [disk.open("/d"), disk.open("/e"), disk.open("/f")] == [first, second, third + 1]


def test_a_write_to_a_full_disk_leaves_a_part() -> None:
    disk = MemoryDisk()
    disk.tears = Random(1)
    fd = disk.open("/file")
    disk.fail("write", errno.ENOSPC)
    sizes = set()
    for _ in range(20):
        with pytest.raises(OSError, match="No space"):
            disk.write(fd, [b"four"], 0)
        sizes.add(disk.size(fd))
        disk.truncate(fd, 0)
    assert sizes == {0, 1, 2, 3, 4}


def test_a_later_sync_does_not_write_what_a_failed_one_dropped() -> None:
    disk = MemoryDisk()
    fd = disk.open("/file")
    disk.write(fd, [b"first"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)
    del disk.failures["sync"]
    disk.write(fd, [b"second"], 5)
    disk.sync(fd)
    assert disk.read(fd, 20, 0) == b"firstsecond"
    assert disk.after_power_loss(Random(1), Loss("all", "none")).content("/file") == bytes(5) + b"second"


def test_what_a_failed_sync_dropped_stays_in_the_cache_until_that_is_dropped() -> None:
    disk = MemoryDisk()
    fd = disk.open("/file")
    disk.write(fd, [b"durable"], 0)
    disk.sync(fd)
    disk.write(fd, [b"dropped"], 7)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)
    disk.write(fd, [b"dirty"], 14)
    disk = disk.for_next_process()
    assert disk.content("/file") == b"durabledroppeddirty"
    disk.drop_cached(disk.reopen("/file"))
    assert disk.content("/file") == b"durable" + bytes(7) + b"dirty"


def test_an_open_file_has_the_new_name_of_its_directory() -> None:
    disk = MemoryDisk()
    disk.make_directory("/data/old")
    fd = disk.open("/data/old/file")
    disk.write(fd, [b"four"], 0)
    cuts: list[str] = []
    disk.before_cut = lambda path, _content, _size: cuts.append(path)
    disk.rename("/data/old", "/data/new")
    disk.truncate(fd, 0)
    assert cuts == ["/data/new/file"]


@pytest.mark.parametrize("seed", range(50))
def test_a_flipped_bit_is_noticed(seed: int) -> None:
    disk = _disk_with_log()
    assert flip_a_bit(disk, 3, {TopicPartition("topic", 0): LeaderAndIsr(1, 0, (1, 2), 1)}, Random(seed)) == LOG
    data = disk.content(LOG)
    valid = [header.base_offset for position, header in iter_batches(data) if crc_is_valid(data, position, header)]
    assert valid in ([], [0])


def test_no_bit_flips_in_a_replica_that_is_in_sync_or_was_closed_in_order() -> None:
    disk = _disk_with_log()
    assert flip_a_bit(disk, 3, {TopicPartition("topic", 0): LeaderAndIsr(1, 0, (1, 3), 1)}, Random(1)) is None
    disk.open("/data/.kafka_cleanshutdown")
    assert flip_a_bit(disk, 3, {TopicPartition("topic", 0): LeaderAndIsr(1, 0, (1, 2), 1)}, Random(1)) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_makes_a_checkpoint_unreadable(seed: int) -> None:
    disk = _disk_with_log()
    path = flip_a_bit_beside_the_logs(disk, Random(seed))
    assert path == "/data/recovery-point-offset-checkpoint", "a log is no file that is made again"
    with pytest.raises(ValueError, match="utf-8"):
        decode_offsets(disk.content(path))
    for name in ("1.index", "1.timeindex", "1.snapshot"):
        disk.write_new(f"/data/topic-0/{0:019d}{name}", b"12345678")
    assert len({flip_a_bit_beside_the_logs(disk, Random(seed)) for seed in range(20)}) == 4


def test_a_directory_that_was_closed_in_order_keeps_its_bits_and_the_other_does_not() -> None:
    disk = _disk_with_log()
    disk.make_directory("/more")
    disk.open("/more/.kafka_cleanshutdown")
    states = {TopicPartition("topic", 0): LeaderAndIsr(1, 0, (1, 2), 1)}
    assert flip_a_bit(disk, 3, states, Random(1)) == LOG
    disk.rename("/data/topic-0", "/data/topic-0.aa-stray")
    disk.make_directory("/more/topic-0")
    disk.write_new(LOG.replace("data", "more"), disk.content(LOG.replace("-0/", "-0.aa-stray/")))
    assert flip_a_bit(disk, 3, states, Random(1)) is None


def _disk_with_log() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/data/topic-0")
    batches = bytearray(build_batch([(None, b"value", (), 0)]) * 2)
    patch(batches, len(batches) // 2, 1, 0)
    disk.write_new(LOG, bytes(batches))
    disk.write_new("/data/recovery-point-offset-checkpoint", b"0\n1\ntopic 0 1\n")
    return disk
