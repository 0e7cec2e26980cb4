"""Controllers of several brokers on a ZooKeeper in memory, with stand-in brokers: no socket, no clock, no luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from controller.controller import Controller, ControllerSettings
from protocol.network_client import Disconnected
from protocol.rpc import framing
from protocol.types import Assignment, BrokerInfo, Buffer, Endpoint, LeaderAndIsr, TopicPartition
from protocol.zk.session import CreateOp, SessionState
from protocol.zk.znodes import (
    PERSISTENT_PATHS,
    BrokerIdZNode,
    ConfigZNode,
    ControllerEpochZNode,
    ControllerZNode,
    IsrChangeZNode,
    LogDirEventZNode,
    PartitionStateZNode,
    TopicZNode,
)
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.played import played
from tests.support.stand_in_broker import StandInBroker

TURNS = 20_000
QUIET_TURNS = 60
"""After this many turns of the loop without a write or a request, nothing more comes from those that still have turns."""


class MemoryNetwork:
    """Stands in for the NetworkClient: broker n is at ("broker", n)."""

    def __init__(self, brokers: Mapping[int, StandInBroker], activity: Callable[[], None]) -> None:
        self._brokers = brokers
        self._activity = activity
        self.rejected: set[int] = set()
        """Brokers that live, and that the controller cannot reach."""

    async def send(self, node: tuple[str, int], encode: Callable[[int], Sequence[Buffer]]) -> memoryview:
        await asyncio.sleep(0)
        self._activity()
        broker = self._brokers.get(node[1])
        if broker is None or node[1] in self.rejected:
            raise Disconnected(f"broker {node[1]} is dead")
        correlation_id, request = framing.parse_request(b"".join(encode(7)))
        return memoryview(framing.response_frame(correlation_id, broker.handle(request)))[4:]

    def disconnect(self, node: tuple[str, int]) -> None:
        """There is no connection to close."""


class MemoryWatches:
    """Stands in for ConnectionWatch: who is told that nobody listens at a broker's address any more (CTL-16)."""

    def __init__(self) -> None:
        self.of: dict[int, list[MemoryWatch]] = {}

    def begin(self, address: tuple[str, int], found_dead: Callable[[], None]) -> MemoryWatch:
        return MemoryWatch(self.of.setdefault(address[1], []), found_dead)

    def refuse(self, broker_id: int) -> None:
        """All watchers of that broker find that it refuses connections."""
        for watch in tuple(self.of.get(broker_id, ())):
            watch.found_dead()


class MemoryWatch:
    def __init__(self, others: list[MemoryWatch], found_dead: Callable[[], None]) -> None:
        self._others = others
        self.found_dead = found_dead
        others.append(self)

    def close(self) -> None:
        self._others.remove(self)


class Events:
    """An event log in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.rows.append((kind, fields))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.rows if name == kind]


class FixedClock:
    """A wall clock that stands still."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall_ms() -> int:
        return 0


class MemoryCluster:
    """`running` has the processes that live; a stand-in broker keeps its disk (what it was told) over its lives."""

    def __init__(self, **settings: Any) -> None:
        self.server = MemoryZooKeeper()
        for path in PERSISTENT_PATHS:
            self.server.ensure(path)
        self.running: dict[int, StandInBroker] = {}
        self.disks: dict[int, StandInBroker] = {}
        self.sessions: dict[int, MemorySession] = {}
        self.controllers: dict[int, Controller] = {}
        self.events = Events()
        self._settings = settings
        self._crashed: list[Controller] = []
        self._sent = 0
        self.network = MemoryNetwork(self.running, self._count)
        self.watches = MemoryWatches()

    def _count(self) -> None:
        self._sent += 1

    # -- processes ------------------------------------------------------------------------------------------------

    async def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            await self.launch(broker_id)
        await self.settle()

    async def launch(self, broker_id: int) -> None:
        """Starts the process, and waits for nothing."""
        session = self.sessions[broker_id] = MemorySession(self.server)
        self.running[broker_id] = self.disks.setdefault(broker_id, StandInBroker(broker_id))
        self.register(broker_id)
        settings = ControllerSettings(broker_id, "CONTROLLER", **self._settings)
        controller = Controller(
            settings,
            session,  # type: ignore[arg-type]
            self.network,  # type: ignore[arg-type]
            FixedClock(),
            self.events,
            self.watches.begin,
        )
        self.controllers[broker_id] = controller
        await controller.start()

    def register(self, broker_id: int) -> None:
        info = BrokerInfo(broker_id, -1, (Endpoint("CONTROLLER", "broker", broker_id),))
        create = CreateOp(BrokerIdZNode.path(broker_id), BrokerIdZNode.encode(info, 0), ephemeral=True)
        self.server.multi([create], self.sessions[broker_id].session_id)
        self.running[broker_id].begin_life(self.server.nodes[create.path].czxid)

    async def kill(self, broker_id: int) -> None:
        """Ends the process and its session."""
        self.crash(broker_id)
        await self.settle()

    def crash(self, broker_id: int) -> None:
        del self.running[broker_id]
        self.sessions.pop(broker_id).expire()
        controller = self.controllers.pop(broker_id)
        controller.on_session_expired()
        self._crashed.append(controller)

    async def end_process(self, broker_id: int) -> MemorySession:
        """Ends the process. Its session, which is returned, lives until it expires (CTL-16)."""
        session = self.sessions.pop(broker_id)
        controller = self.controllers.pop(broker_id)
        del self.running[broker_id]
        controller.on_session_expired()
        await controller.stop()
        return session

    async def bounce(self, broker_id: int) -> None:
        """Dead and back before anybody has looked (BUG-16)."""
        self.crash(broker_id)
        await self.start(broker_id)

    def expire(self, broker_id: int) -> None:
        """FLT-20: the process lives on with another session (STA-4)."""
        session = self.sessions[broker_id]
        session.expire()
        self.controllers[broker_id].on_session_expired()
        session.renew()
        self.register(broker_id)
        self.controllers[broker_id].on_session_restored()

    async def settle(self) -> None:
        """Runs until nothing happens any more."""
        others = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        quiet, before = 0, (-1, -1)
        for _ in range(TURNS):
            if not others:
                return  # everybody waits for somebody
            now = (self.server.zxid, self._sent)
            quiet = quiet + 1 if now == before else 0
            before = now
            if quiet > QUIET_TURNS:
                return
            await asyncio.sleep(0)
        raise AssertionError("it never gets quiet")

    async def until(self, check: Callable[[], object]) -> None:
        for _ in range(TURNS):
            if check():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never comes about")

    async def close(self) -> None:
        for controller in (*self.controllers.values(), *self._crashed):
            await controller.stop()

    # -- what ZooKeeper has ---------------------------------------------------------------------------------------

    @property
    def controller(self) -> int:
        return ControllerZNode.decode(self.server.nodes[ControllerZNode.PATH].data)

    @property
    def controller_epoch(self) -> int:
        return ControllerEpochZNode.decode(self.server.nodes[ControllerEpochZNode.PATH].data)

    def put_topic(self, topic: str, assignment: Mapping[int, tuple[int, ...]], topic_id: str | None = None) -> None:
        data = TopicZNode.encode(topic_id, {p: Assignment(replicas) for p, replicas in assignment.items()})
        self.server.ensure(TopicZNode.path(topic), data)

    async def create_topic(
        self, topic: str, assignment: Mapping[int, tuple[int, ...]], config: Mapping[str, str] | None = None
    ) -> None:
        if config is not None:
            self.server.ensure(ConfigZNode.path("topics", topic), ConfigZNode.encode(config))
        self.put_topic(topic, assignment)
        await self.settle()

    def state(self, topic: str, partition: int = 0) -> LeaderAndIsr:
        node = self.server.nodes[PartitionStateZNode.path(TopicPartition(topic, partition))]
        return PartitionStateZNode.decode(node.data, node.version)

    def topic_id(self, topic: str) -> str | None:
        return TopicZNode.decode(self.server.nodes[TopicZNode.path(topic)].data)[0]

    def states(self) -> dict[TopicPartition, LeaderAndIsr]:
        found = {}
        for path, node in self.server.nodes.items():
            parts = path.split("/")
            if len(parts) == 7 and parts[6] == "state":
                tp = TopicPartition(parts[3], int(parts[5]))
                found[tp] = PartitionStateZNode.decode(node.data, node.version)
        return found

    def leader_writes_isr(self, topic: str, partition: int, isr: tuple[int, ...], *, notify: bool = True) -> None:
        """What the leader of a partition does (REP-3)."""
        tp = TopicPartition(topic, partition)
        old = self.state(topic, partition)
        data = PartitionStateZNode.encode(LeaderAndIsr(old.leader, old.leader_epoch, isr, old.controller_epoch))
        self.server.ensure(PartitionStateZNode.path(tp), data)
        if notify:
            self.server.ensure(f"{IsrChangeZNode.PATH_PREFIX}{self.server.zxid:010}", IsrChangeZNode.encode([tp]))

    def disk_fails(self, broker_id: int, *partitions: TopicPartition) -> None:
        """What a broker does that finds a log directory broken, which held these (LOG-6)."""
        self.running[broker_id].offline.update(partitions)
        path = f"{LogDirEventZNode.PATH_PREFIX}{self.server.zxid:010}"
        self.server.ensure(path, LogDirEventZNode.encode(broker_id))

    # -- what must be true once it is quiet -----------------------------------------------------------------------

    def check(self) -> None:
        """INV-4, INV-27: states are sound, and every live broker knows them."""
        assert not self.server.children(IsrChangeZNode.PARENT)
        assert not self.server.children(LogDirEventZNode.PARENT)
        states = self.states()
        brokers = self.running.keys()
        for tp, state in states.items():
            live = {
                broker for broker in brokers if tp not in self.running[broker].offline | self.running[broker].emptied
            }
            assert state.isr, tp
            assert state.leader == -1 or state.leader in state.isr, (tp, state)
            assert state.leader == -1 or state.leader in live, (tp, state)
            assert state.leader != -1 or live.isdisjoint(state.isr), (tp, state)
            assert state.leader == -1 or set(state.isr) <= live, (tp, state)
        for broker_id, broker in self.running.items():
            assert broker.controller_id == self.controller
            assert broker.controller_epoch == self.controller_epoch
            assert {info.id for info in broker.brokers} == set(brokers)
            told = {tp: (s.leader, s.leader_epoch, s.isr, s.zk_version) for tp, s in broker.metadata.items()}
            assert told == {tp: (s.leader, s.leader_epoch, s.isr, s.zk_version) for tp, s in states.items()}
            for tp, replica in broker.replicas.items():
                if tp in states and tp not in broker.offline:
                    assert replica.leader_epoch == states[tp].leader_epoch, (broker_id, tp, replica, states[tp])
                    assert replica.leader == states[tp].leader
                    assert broker.topic_ids.get(tp) == self.topic_id(tp.topic), (broker_id, tp)
            for topic in {tp.topic for tp in states}:
                assert broker.known_topic_ids.get(topic) == self.topic_id(topic) is not None, (broker_id, topic)

    def set_connected(self, broker_id: int, is_connected: bool) -> None:
        """The connection to ZooKeeper breaks; the session lives (CTL-14)."""
        self.sessions[broker_id].change_state(SessionState.CONNECTED if is_connected else SessionState.SUSPENDED)


@asynccontextmanager
async def running(*broker_ids: int, **settings: Any) -> AsyncIterator[MemoryCluster]:
    """Starts those brokers one after the other, or 1, 2 and 3. If nothing fails, looks in the end whether all is sound."""
    cluster = MemoryCluster(**settings)
    try:
        for broker_id in broker_ids or (1, 2, 3):
            await cluster.start(broker_id)
        yield cluster
        await cluster.settle()
        cluster.check()
    finally:
        await cluster.close()


def scenario(play: Callable[[MemoryCluster], Awaitable[None]], *broker_ids: int, **settings: Any) -> MemoryCluster:
    """Plays on a cluster that is `running`."""

    async def run() -> MemoryCluster:
        async with running(*broker_ids, **settings) as cluster:
            await play(cluster)
        return cluster

    return asyncio.run(run())


on_cluster = partial(played, scenario)
"""`@on_cluster(*broker_ids, **settings)`: the test's argument `cluster` is this one, and not the fixture."""


def kinds(requests: Sequence[object]) -> list[str]:
    return [type(request).__name__.removesuffix("Request") for request in requests]
