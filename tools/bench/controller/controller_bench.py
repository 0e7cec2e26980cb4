"""`ottla bench controller`: how fast a controller takes office and reacts, with a real ZooKeeper and brokers that only acknowledge.

The controller runs alone in its own process. This process runs the brokers, so that their reading does not count as the controller's
time; both processes and ZooKeeper share the machine's cores. The measurements for each size:

* **nothing to elect**: only the controller died. A new one loads everything and sends every broker the whole state.
* **a broker died**: a broker died together with the controller. The new controller also elects leaders for that broker's
  partitions, removes it from every ISR, and writes all that.
* **one event**: an ISR changes, a topic of one partition is created, or a broker with ten partitions dies. The cost must depend on
  what changed, and not on the size of the cluster.
* **a large death**: one of the brokers dies, while the controller stays. It has a replica of most partitions, and leads its share.

"told" is the time from the election of the controller, or from the event, to the last acknowledgement of any broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protocol.topic_ids import new_topic_id
from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import IsrChangeZNode, PartitionStateZNode, TopicZNode
from tools.bench.controller.acknowledging_brokers import QUIET_S, AcknowledgingBrokers
from tools.bench.controller.cluster_znodes import ClusterShape, restore_states, write_cluster, write_topic
from tools.cluster.local_cluster import SOURCE_ROOT

SESSION_TIMEOUT_MS = 30_000
TIMEOUT_S = 120.0
CONTROLLER_ID = 1
SMALL_BROKER_PARTITIONS = 10
BETWEEN_ANNOUNCEMENTS_S = 5.0
"""Longer than the pause between announcing the new leaders and announcing the other ISRs, on a slow machine."""

NOTHING_ELECTED = "nothing to elect"
BROKER_DIED = "a broker died"


@dataclass(frozen=True, slots=True)
class Takeover:
    """One election of a controller. `written` is the number of partition states that it wrote to ZooKeeper.

    `cpu_ms` is the CPU time of the controller's process; it includes events that were logged after the last acknowledgement.
    """

    partitions: int
    scenario: str
    load_ms: float
    elect_ms: float
    write_ms: float
    announce_ms: float
    told_ms: float
    cpu_ms: float
    written: int
    sent_mb: float
    rss_mb: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Reaction:
    """One event on a loaded cluster."""

    partitions: int
    event: str
    told_ms: float
    sent_kb: float


class ControllerProcess:
    """A process of `tools.bench.controller.controller_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, kind: str) -> dict[str, Any]:
        """Waits for the next line of this kind. Raises TimeoutError, and RuntimeError if the process ends."""
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while text := await self._process.stdout.readline():
                fields: dict[str, Any] = json.loads(text)
                if fields["kind"] == kind:
                    return fields
        raise RuntimeError("the controller's process ended")

    def proceed(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def controller_process(connect: str, event_log: Path) -> AsyncIterator[ControllerProcess]:
    """Starts a controller's process. It has connected to ZooKeeper and waits for `proceed`."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tools.bench.controller.controller_process",
            connect,
            str(CONTROLLER_ID),
            str(event_log),
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=SOURCE_ROOT,
    )
    controller = ControllerProcess(process)
    try:
        await controller.line("ready")
        yield controller
    finally:
        await controller.end()


class ControllerBench:
    """The measurements of one size, in its own chroot."""

    def __init__(
        self,
        connect: str,
        event_log: Path,
        shape: ClusterShape,
        rounds: int,
        found: Callable[[Takeover | Reaction], None],
    ) -> None:
        """Calls `found` for each measurement."""
        self._connect = connect
        self._event_log = event_log
        self._shape = shape
        self._broker_ids = list(range(1, shape.brokers + 1))
        self._rounds = rounds
        self._found = found
        self._zk = ZooKeeperSession(connect, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._brokers = AcknowledgingBrokers(self._zk)

    async def run(self, progress: Callable[[int], None]) -> None:
        """Takes all measurements. First creates the cluster, and calls `progress` as `write_cluster` does."""
        await self._zk.start(TIMEOUT_S)
        try:
            await write_cluster(self._zk, self._shape, progress)
            for broker in self._broker_ids:
                await self._brokers.register(broker)
            self._found(_median([await self._take_over(NOTHING_ELECTED) for _ in range(self._rounds)]))
            self._found(_median([await self._lose_broker() for _ in range(self._rounds)]))
            await self._reactions()
        finally:
            self._brokers.close()
            await self._zk.close()

    async def _lose_broker(self) -> Takeover:
        """Measures a takeover after a broker that led its share of the partitions died, then restores the cluster."""
        broker = self._broker_ids[-1]
        await self._brokers.deregister(broker)
        takeover = await self._take_over(BROKER_DIED)
        await self._brokers.register(broker)
        await restore_states(self._zk, self._shape)
        return takeover

    async def _take_over(self, scenario: str) -> Takeover:
        brokers = self._brokers
        async with controller_process(self._connect, self._event_log) as controller:
            brokers.reset()
            controller.proceed()
            elected = await controller.line("controller_elected")
            in_office = await controller.line("controller_in_office")
            await brokers.quiet(1, TIMEOUT_S)
            told_ms = 1000 * (brokers.last_answer - elected["at_s"])
            sent_mb = brokers.received_bytes / 1024**2
            controller.proceed()
            memory = await controller.line("memory")
        steps = {name: in_office[name] for name in ("load_ms", "elect_ms", "write_ms", "announce_ms", "written")}
        return Takeover(
            self._shape.partitions,
            scenario,
            **steps,
            told_ms=told_ms,
            cpu_ms=memory["cpu_ms"],
            sent_mb=sent_mb,
            rss_mb=memory["rss_mb"],
            peak_mb=memory["peak_mb"],
        )

    async def _reactions(self) -> None:
        """Measures the cost of single events for a controller in office."""
        few = self._broker_ids[-1] + 1
        replicas = (few, *self._broker_ids[: self._shape.replication_factor - 1])
        await write_topic(self._zk, "few", dict.fromkeys(range(SMALL_BROKER_PARTITIONS), replicas))
        await self._brokers.register(few)
        async with controller_process(self._connect, self._event_log) as controller:
            self._brokers.reset()
            controller.proceed()
            await controller.line("controller_in_office")
            await self._brokers.quiet(1, TIMEOUT_S)
            for event, cause in (
                ("an ISR changes", self._change_isr),
                ("a topic of one partition is created", self._make_topic),
                (f"a broker with {SMALL_BROKER_PARTITIONS} partitions dies", partial(self._brokers.deregister, few)),
            ):
                self._found(await self._reaction(event, cause))
            large = partial(self._brokers.deregister, self._broker_ids[-1])
            self._found(await self._reaction("one of the large brokers dies", large, BETWEEN_ANNOUNCEMENTS_S))

    async def _reaction(self, event: str, cause: Callable[[], Awaitable[None]], quiet_s: float = QUIET_S) -> Reaction:
        brokers = self._brokers
        brokers.reset()
        begin = time.monotonic()
        await cause()
        await brokers.quiet(1, TIMEOUT_S, quiet_s)
        return Reaction(
            self._shape.partitions, event, 1000 * (brokers.last_answer - begin), brokers.received_bytes / 1024
        )

    async def _change_isr(self) -> None:
        """Changes an ISR, as a leader does that loses a follower."""
        tp = TopicPartition("bench-00000", 0)
        path = PartitionStateZNode.path(tp)
        data, stat = await self._zk.get(path)
        state = PartitionStateZNode.decode(data, stat.version)
        shrunken = LeaderAndIsr(state.leader, state.leader_epoch, state.isr[:1], state.controller_epoch)
        await self._zk.set(path, PartitionStateZNode.encode(shrunken), stat.version)
        await self._zk.create(IsrChangeZNode.PATH_PREFIX, IsrChangeZNode.encode([tp]), sequence=True)

    async def _make_topic(self) -> None:
        assignment = {0: Assignment(tuple(self._broker_ids[: self._shape.replication_factor]))}
        data = TopicZNode.encode(new_topic_id(b"0123456789abcdef"), assignment)
        await self._zk.create(TopicZNode.path("one-more"), data)


def _median(takeovers: list[Takeover]) -> Takeover:
    """The round with the median `told_ms`."""
    ordered = sorted(takeovers, key=lambda takeover: takeover.told_ms)
    return ordered[len(ordered) // 2]
