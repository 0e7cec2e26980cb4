"""What the invariants say about states and disks that break them, and about such that do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.storage.directories.future_logs import REPLACES_CURRENT
from protocol.kafka.record_batch import build_batch
from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from tools.sim.invariants import Invariants, _epoch_of
from tools.sim.world.disk import MemoryDisk
from tools.sim.world.zookeeper_tree import ZooKeeperTree

TP = TopicPartition("topic0", 0)
LOG = "/data/topic0-0/00000000000000000000.log"
PRODUCER = 7


def batch(sequence: int) -> bytes:
    return build_batch([(None, b"x", (), 0)], producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def broken() -> list[str]:
    return []


@pytest.fixture
def invariants(broken: list[str]) -> Invariants:
    """The partition is led by broker 1, with broker 2 in the ISR, and its first batch is acknowledged."""
    made = Invariants(ZooKeeperTree(lambda: 0, lambda _event, _path: None), {}, broken.append, min_insync=0)
    made._state_written(TP, LeaderAndIsr(1, 3, (1, 2), 1, 0), is_new=True)
    made._acked[TP] = {(PRODUCER, 0, 0): None}
    return made


@pytest.mark.parametrize(
    ("broker", "kept", "is_wrong"), [(2, 0, True), (2, 1, False), (3, 0, False)], ids=["acked", "behind", "not in sync"]
)
def test_an_acknowledged_batch_is_not_cut_away(
    invariants: Invariants, broken: list[str], broker: int, kept: int, is_wrong: bool
) -> None:
    first, second = batch(0), batch(1)
    invariants.log_is_cut(broker, LOG, bytearray(first + second), kept * len(first))
    assert [line.partition(":")[0] for line in broken] == ["INV-1"] * is_wrong


@pytest.mark.parametrize("lives", [1, 2], ids=["away", "back"])
def test_a_late_fetch_takes_a_broker_into_the_isr_whose_disk_is_replaced(
    invariants: Invariants, broken: list[str], lives: int
) -> None:
    """That is right as long as it is away: its next life says that its log is missing (FLT-33)."""
    node = SimpleNamespace(lives=1, disk=MemoryDisk(), session=None, is_ready=False)
    invariants._nodes = cast(Any, {2: node})
    invariants.disk_is_empty(2)
    invariants._state_written(TP, LeaderAndIsr(1, 3, (1,), 1, 1), is_new=False)
    if lives > 1:
        node.lives, node.session = lives, SimpleNamespace(session_id=4711)
        for path, owner in (("/brokers", 0), ("/brokers/ids", 0), ("/brokers/ids/2", 4711)):
            invariants._tree.create(path, b"", owner=owner)
    invariants._state_written(TP, LeaderAndIsr(1, 3, (1, 2), 1, 2), is_new=False)
    assert any(line.startswith("INV-1:") for line in broken) == (lives == 2)


def test_a_torn_batch_is_no_acknowledged_one(invariants: Invariants, broken: list[str]) -> None:
    torn = bytearray(batch(0))
    torn[-1] ^= 1
    invariants.log_is_cut(2, LOG, torn, 0)
    assert not broken


def test_the_log_of_a_member_of_the_isr_is_not_removed(invariants: Invariants, broken: list[str]) -> None:
    invariants.log_goes(3, "/data/topic0-0")
    invariants.log_goes(2, LOG)
    assert not broken
    invariants.log_goes(2, "/data/topic0-0")
    assert broken[0].startswith("BUG-20")


@pytest.mark.parametrize(("is_marked", "batches", "rule"), [(True, 2, ""), (True, 1, "INV-1"), (False, 2, "BUG-20")])
def test_a_whole_copy_may_replace_the_log(
    invariants: Invariants, broken: list[str], is_marked: bool, batches: int, rule: str
) -> None:
    invariants._acked[TP][PRODUCER, 0, 1] = None
    disk = MemoryDisk()
    copy = f"/more/topic0-0.{'0a' * 16}-future"
    for path in ("/data/topic0-0", copy):
        disk.make_directory(path)
    disk.write_new(f"{copy}/00000000000000000000.log", b"".join(map(batch, range(batches))))
    if is_marked:
        disk.write_new(f"{copy}/{REPLACES_CURRENT}", b"")
    invariants._nodes = {2: cast(Any, SimpleNamespace(disk=disk))}
    invariants.log_goes(2, "/data/topic0-0")
    assert [line.partition(":")[0] for line in broken] == [rule] * bool(rule)


@pytest.mark.parametrize("has_joined", [True, False])
def test_a_move_ends_with_its_new_replicas_in_the_isr(
    invariants: Invariants, broken: list[str], has_joined: bool
) -> None:
    invariants._assigned(TP, Assignment((1, 2)))
    invariants._assigned(TP, Assignment((1, 3, 2), (3,), (2,)))
    if has_joined:
        invariants._were_in_sync[TP].add(3)
    invariants._assigned(TP, Assignment((1, 3)))
    assert [line.partition(":")[0] for line in broken] == ["INV-25"] * (not has_joined)


@pytest.mark.parametrize("has_log", [False, True])
def test_the_isr_before_counts_if_its_last_member_has_no_log(
    invariants: Invariants, broken: list[str], has_log: bool
) -> None:
    """Broker 1 had no descriptor for its log, and was alone in the ISR when it said so (FLT-33)."""
    disk, other = MemoryDisk(), MemoryDisk()
    for one, has in ((disk, has_log), (other, True)):
        if has:
            one.make_directory(LOG.rpartition("/")[0])
            one.write_new(LOG, batch(0))
    node = SimpleNamespace(lives=1, disk=other, session=None, is_ready=False)
    invariants._nodes = cast(Any, {1: SimpleNamespace(lives=1, disk=disk, session=None, is_ready=False), 2: node})
    invariants._state_written(TP, LeaderAndIsr(1, 4, (1,), 1, 1), is_new=False)
    invariants._state_written(TP, LeaderAndIsr(2, 5, (2,), 1, 2), is_new=False)
    assert any(line.startswith("INV-18") for line in broken) == has_log


def test_a_replaced_controller_writes_nothing(invariants: Invariants, broken: list[str]) -> None:
    invariants._controller_epoch = 2
    invariants._state_written(TP, LeaderAndIsr(1, 3, (1,), 1, 1), is_new=False)
    assert not broken, "the leader's own write"
    invariants._state_written(TP, LeaderAndIsr(1, 4, (1,), 1, 2), is_new=False)
    assert broken[0].startswith("INV-9")


def test_the_epoch_of_a_batch_is_read_from_the_disk() -> None:
    stored = bytearray(batch(0))
    stored[12:16] = (5).to_bytes(4)
    assert _epoch_of(bytes(stored[16:61]), [bytearray(), bytearray(batch(1) + stored)]) == 5
    assert _epoch_of(batch(2)[16:61], [stored]) is None
