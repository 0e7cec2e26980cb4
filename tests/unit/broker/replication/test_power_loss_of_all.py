"""All replicas lose their power at once, and with `flush.messages=1` nothing that was acknowledged or shown is lost (INV-21, FLT-25).

Brokers on disks that lose what was not synced, in random schedules: flushes that take long, followers, other leaders, processes that
die. Before each step it is asked what each disk would have after a power loss; sometimes the power is lost. In the end everyone who
waited has an answer.
"""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from broker.replication.following import replica_fetcher
from broker.replication.partition import Partition
from broker.settings.config import TopicConfig
from broker.storage.log_manager import LogManager
from protocol.errors import ErrorCode
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import decode_records, iter_batches
from tests.support.fake_time import FakeTime
from tests.support.held_syncs import HeldSyncs, held_syncs, turns
from tests.support.replica_cluster import TP, Cluster
from tools.sim.world.disk import LOSSES, MemoryDisk

BROKERS = (1, 2, 3)
STEPS = 60
EACH = {"flush.messages": "1"}
LONG_MS = 10**7


class World:
    """`one` and `all`: what the leader has acknowledged with acks=1 since it leads, and what was acknowledged with acks=all or shown."""

    def __init__(self, directory: Path, syncs: HeldSyncs, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(directory)
        self.syncs = syncs
        self.disks = {broker: MemoryDisk() for broker in BROKERS}
        self.cluster.filesystem = self.disks.__getitem__
        self.epoch = 0
        self.number = 0
        self.waiting: list[tuple[int, int, str, list[ProducePartitionResult]]] = []
        self.one: dict[int, str] = {}
        self.all: dict[int, str] = {}
        self.losses = 0

    @property
    def isr(self) -> tuple[int, ...]:
        return self.cluster.isr.states[TP].isr

    @property
    def leader(self) -> int:
        return self.cluster.isr.states[TP].leader

    def led(self) -> Partition | None:
        node = self.cluster.nodes.get(self.leader)
        return node.partition() if node is not None else None

    def lead(self, leader: int, isr: tuple[int, ...]) -> None:
        self.epoch += 1
        self.cluster.lead(leader, self.epoch, isr, overrides=EACH, replicas=BROKERS, is_new=self.epoch == 1)
        self.one = {}

    # -- what happens -------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        kinds = [self.produce] * 6 + [self.end_a_sync] * 5 + [self.replicate] * 6 + [self.move_the_leader, self.bounce]
        await self.random.choice(kinds)()
        await self.hear()

    async def hear(self) -> None:
        await turns()
        self.cluster.time.turn()
        self.cluster.isr.apply()
        await turns()
        self.cluster.time.turn()
        left = []
        for acks, leader, value, answer in self.waiting:
            if not answer:
                left.append((acks, leader, value, answer))
            elif answer[0].error == ErrorCode.NONE and acks == -1:
                self.all[answer[0].base_offset] = value
            elif answer[0].error == ErrorCode.NONE and leader == self.leader:
                self.one[answer[0].base_offset] = value
        self.waiting = left
        led = self.led()
        if led is not None:
            shown = self.cluster.nodes[self.leader].records()[: led.high_watermark]
            self.all |= dict(enumerate(shown))

    async def produce(self) -> None:
        if self.led() is None:
            return
        self.number += 1
        acks = self.random.choice((1, -1))
        value = f"{self.number} acks={acks}"
        answer = self.cluster.produce(self.leader, value, acks=acks, timeout_ms=LONG_MS)
        self.waiting.append((acks, self.leader, value, answer))

    async def end_a_sync(self) -> None:
        if self.syncs.under_way:
            await self.syncs.end(self.random.choice(self.syncs.under_way)[0])

    async def replicate(self) -> None:
        broker = self.random.choice(BROKERS)
        if broker in self.cluster.nodes:
            await self.cluster.replicate(broker)

    async def move_the_leader(self) -> None:
        live = [broker for broker in self.isr if broker in self.cluster.nodes]
        if live:
            self.lead(self.random.choice(live), self.isr)

    def kill(self, broker: int) -> None:
        self.cluster.kill(broker)
        self.syncs.forget(self.disks[broker])
        self.waiting = [entry for entry in self.waiting if entry[1] != broker]

    async def bounce(self) -> None:
        """A process dies, or comes back. The page cache has what was written, and the disk still lacks what was not synced."""
        broker = self.random.choice(BROKERS)
        if broker not in self.cluster.nodes:
            await self.come_back(broker)
            return
        self.kill(broker)
        isr = tuple(member for member in self.isr if member != broker) or self.isr
        live = [member for member in isr if member in self.cluster.nodes]
        if broker == self.leader or broker in self.isr:
            self.lead(self.leader if self.leader in live else self.random.choice(live or [-1]), isr)

    async def come_back(self, broker: int) -> None:
        await self.cluster.start_broker(broker)
        live = [member for member in self.isr if member in self.cluster.nodes]
        self.lead(self.leader if self.leader in live else self.random.choice(live or [-1]), self.isr)

    async def lose_power(self) -> None:
        self.losses += 1
        for broker in list(self.cluster.nodes):
            self.kill(broker)
        for broker, disk in self.disks.items():
            self.disks[broker] = disk.after_power_loss(self.random, self.random.choice(LOSSES))
        self.lead(-1, self.isr)
        for broker in self.random.sample(BROKERS, len(BROKERS)):
            await self.come_back(broker)
        await self.hear()

    async def settle(self) -> None:
        for broker in BROKERS:
            if broker not in self.cluster.nodes:
                await self.come_back(broker)
        for _ in range(8):
            await self.syncs.end_all()
            await self.cluster.replicate()
            await self.hear()

    # -- what holds ---------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """On the disks of all in sync is what was acknowledged with acks=all or shown; on the leader's, what it has acknowledged."""
        for broker in self.isr:
            found = await self.after_power_loss(broker)
            wanted = self.all | (self.one if broker == self.leader else {})
            missing = {offset: value for offset, value in wanted.items() if found.get(offset) != value}
            assert not missing, f"broker {broker} has {found}"

    async def after_power_loss(self, broker: int) -> dict[int, str]:
        """What its log would have: offset -> value."""
        node = self.cluster.nodes.get(broker)
        paths = node.logs.directories if node is not None else [str(self.cluster.directory / f"broker-{broker}-0")]
        disk = self.disks[broker].after_power_loss(self.random, self.random.choice(LOSSES))
        manager = LogManager(paths, TopicConfig(), disk, FakeTime())
        await manager.start()
        log = manager.get(TP)
        if log is None or log.log_end_offset == 0:
            return {}
        records = log.read(0, 2**20, log.log_end_offset, True).records
        data = memoryview(b"".join(map(bytes, records)))
        return {
            record.offset: record.value.decode()
            for position, _ in iter_batches(data)
            for record in decode_records(data, position)
            if record.value is not None
        }


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
@pytest.mark.parametrize("seed", range(20))
async def test_nothing_acknowledged_or_shown_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(replica_fetcher, "FLUSH_WAIT_S", 0)
    world = World(tmp_path, held_syncs(monkeypatch), seed)
    await world.cluster.start(*BROKERS)
    world.lead(1, BROKERS)
    for number in range(STEPS):
        await world.step()
        await world.check()
        if number % 20 == 19:
            await world.lose_power()
            await world.check()
    await world.settle()
    await world.check()
    assert world.waiting == []
    for node in world.cluster.nodes.values():
        assert dict(enumerate(node.records())) == world.all
    world.cluster.close()
