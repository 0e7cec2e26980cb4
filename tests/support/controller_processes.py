"""Controllers of several broker processes' worth on a real ZooKeeper, in one loop, with stand-in brokers behind real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.controller import Controller, ControllerSettings
from protocol.network_client import NetworkClient
from protocol.rpc import framing
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from protocol.zk.session import Op, OpResult, SessionState, SetOp, ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, PartitionStateZNode, TopicZNode
from tests.support.memory_cluster import Events
from tests.support.stand_in_broker import StandInBroker
from tests.support.zookeeper import ZooKeeperServer

SESSION_TIMEOUT_MS = 20_000
"""Long: `expire_session` ends a session, and no test waits for it."""
TIMEOUT_S = 20.0
POLL_S = 0.005
HOST = "127.0.0.1"


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 0


class GatedSession(ZooKeeperSession):
    """`gate` holds back multis that write states."""

    def __init__(self, hosts: str) -> None:
        super().__init__(hosts, session_timeout_ms=SESSION_TIMEOUT_MS)
        self.gate = asyncio.Event()
        self.gate.set()

    async def multi(self, operations: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, SetOp) and op.path.endswith("/state") for op in operations):
            await self.gate.wait()
        return await super().multi(operations)


class Process:
    """One broker process: session, control listener, stand-in broker, controller."""

    def __init__(self, hosts: str, broker: StandInBroker, settings: Mapping[str, Any]) -> None:
        self.broker = broker
        self.zk = GatedSession(hosts)
        self.events = Events()
        self._network = NetworkClient(LoopClock(), request_timeout_ms=5000, random=random.random)
        self.controller = Controller(
            ControllerSettings(broker.id, "CONTROLLER", **settings), self.zk, self._network, LoopClock(), self.events
        )
        self.server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._is_registered = asyncio.Event()
        """Set when the broker is registered. Until then no request can name its life; the real listener waits, too (`when_registered`)."""
        self.address = (HOST, 0)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, HOST, 0)
        self.address = self.server.sockets[0].getsockname()[:2]
        await self.zk.start(10)
        self.zk.add_listener(self._session_changed)
        await self._register()
        await self.controller.start()

    async def _register(self) -> None:
        info = BrokerInfo(self.broker.id, -1, (Endpoint("CONTROLLER", *self.address),))
        path = BrokerIdZNode.path(self.broker.id)
        _, stat = await self.zk.create(path, BrokerIdZNode.encode(info, 0), ephemeral=True)
        self.broker.begin_life(stat.czxid)
        self._is_registered.set()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._is_registered.clear()
            self.controller.on_session_expired()
        elif state is SessionState.CONNECTED and self.controller.epoch == 0:
            self._registering = asyncio.get_running_loop().create_task(self._register_again())

    async def _register_again(self) -> None:
        if await self.zk.exists(BrokerIdZNode.path(self.broker.id)) is None:
            await self._register()
            self.controller.on_session_restored()

    async def kill(self) -> None:
        """Kills without a notice. ZooKeeper ends the session at once; after a real death it waits for the time-out."""
        self.controller.on_session_expired()
        await self.controller.stop()
        self.close_listener()
        self._network.close()
        await self.zk.close()

    def close_listener(self) -> None:
        if self.server is not None:
            self.server.close()
        for writer in self._connections:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                correlation_id, request = framing.parse_request(await reader.readexactly(length))
                if isinstance(request, ControlledShutdownRequest):
                    response = await self.controller.controlled_shutdown(request)
                else:
                    await self._is_registered.wait()
                    response = self.broker.handle(request)
                writer.write(framing.response_frame(correlation_id, response))
        writer.close()


@dataclass
class ControllerCluster:
    """The processes that run, a ZooKeeper client of the test's own, and what stays of brokers that died."""

    server: ZooKeeperServer
    hosts: str
    zk: ZooKeeperSession
    settings: dict[str, Any]
    processes: dict[int, Process]
    disks: dict[int, StandInBroker]

    async def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            broker = self.disks.setdefault(broker_id, StandInBroker(broker_id))
            self.processes[broker_id] = Process(self.hosts, broker, self.settings)
            await self.processes[broker_id].start()
            await self.until(
                lambda broker_id=broker_id: broker_id in {info.id for info in self.disks[broker_id].brokers},
                f"broker {broker_id} has heard of the cluster",
            )

    async def kill(self, broker_id: int) -> None:
        await self.processes.pop(broker_id).kill()

    async def until(self, check: Callable[[], object], what: str) -> None:
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while not check():
            assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
            await asyncio.sleep(POLL_S)

    async def state(self, topic: str, partition: int = 0) -> LeaderAndIsr:
        data, stat = await self.zk.get(PartitionStateZNode.path(TopicPartition(topic, partition)))
        return PartitionStateZNode.decode(data, stat.version)

    async def becomes(self, topic: str, partition: int, expected: LeaderAndIsr) -> None:
        """Waits until ZooKeeper has the state, and every live broker has been told so."""
        tp = TopicPartition(topic, partition)
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            node = (await self.zk.get_many([PartitionStateZNode.path(tp)]))[0]
            state = None if node is None else PartitionStateZNode.decode(node[0], node[1].version)
            told = [process.broker.metadata.get(tp) for process in self.processes.values()]
            if state == expected and all(
                row is not None
                and (row.leader, row.leader_epoch, row.isr, row.zk_version)
                == (expected.leader, expected.leader_epoch, expected.isr, expected.zk_version)
                for row in told
            ):
                return
            assert asyncio.get_running_loop().time() < deadline, f"{tp} is {state}, told are {told}, not {expected}"
            await asyncio.sleep(POLL_S)

    async def create_topic(self, topic: str, assignment: Mapping[int, tuple[int, ...]]) -> None:
        data = TopicZNode.encode(None, {p: Assignment(replicas) for p, replicas in assignment.items()})
        await self.zk.create(TopicZNode.path(topic), data)

    async def epoch(self) -> int:
        return ControllerEpochZNode.decode((await self.zk.get(ControllerEpochZNode.PATH))[0])

    def active(self) -> list[int]:
        return [broker_id for broker_id, process in self.processes.items() if process.controller.is_active]
