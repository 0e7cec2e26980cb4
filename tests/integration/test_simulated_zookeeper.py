"""The simulated ZooKeeper answers as a real one: the same random operations of two sessions, and the same watches (docs/SIMULATION.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from protocol.zk.session import (
    CheckOp,
    CreateOp,
    DeleteOp,
    MultiFailed,
    SetOp,
    WatchEvent,
    ZkError,
    ZooKeeperSession,
)
from tests.support.thorough import thorough
from tests.support.zookeeper import ZooKeeperServer
from tests.support.zookeeper_sessions import open_session
from tools.sim.world.event_loop import ProcessLoop
from tools.sim.world.network import Network
from tools.sim.world.nodes import SimulatedSession
from tools.sim.world.scheduler import Scheduler
from tools.sim.world.zookeeper import ZooKeeper

pytestmark = pytest.mark.integration

NAMES = ("a", "b", "c")
OPERATIONS = 400
Step = Callable[[ZooKeeperSession, Callable[[WatchEvent], None]], Awaitable[Any]]


def steps_of(seed: int) -> list[tuple[int, Step]]:
    """(which of two sessions, the operation)."""
    random = Random(seed)

    def path() -> str:
        return "/" + "/".join(random.choice(NAMES) for _ in range(random.randint(1, 3)))

    def version() -> int:
        return random.choice((-1, -1, 0, 1, 2))

    def one_of_multi() -> Any:
        kind = random.randrange(4)
        if kind == 0:
            return CreateOp(path(), random.randbytes(2), random.random() < 0.2, random.random() < 0.2)
        if kind == 1:
            return SetOp(path(), random.randbytes(2), version())
        return DeleteOp(path(), version()) if kind == 2 else CheckOp(path(), version())

    def step() -> Step:
        kind = random.randrange(10)
        at, data, at_version, is_watched = path(), random.randbytes(3), version(), random.random() < 0.6
        if kind in (0, 1):
            is_ephemeral, is_sequential = random.random() < 0.2, random.random() < 0.2
            return lambda zk, _: zk.create(at, data, ephemeral=is_ephemeral, sequence=is_sequential)
        if kind == 2:
            return lambda zk, _: zk.set(at, data, at_version)
        if kind == 3:
            return lambda zk, _: zk.delete(at, at_version)
        if kind == 4:
            return lambda zk, seen: zk.get(at, seen if is_watched else None)
        if kind == 5:
            return lambda zk, seen: zk.exists(at, seen if is_watched else None)
        if kind == 6:
            return lambda zk, seen: zk.children(at, seen if is_watched else None)
        paths = [path() for _ in range(random.randint(1, 4))]
        if kind == 7:
            return lambda zk, seen: zk.get_many(paths, seen if is_watched else None)
        if kind == 8:
            return lambda zk, _: zk.get_versions(paths)
        operations = [one_of_multi() for _ in range(random.randint(1, 4))]
        return lambda zk, _: zk.multi(operations)

    return [(random.randrange(2), step()) for _ in range(OPERATIONS)]


async def played(sessions: Sequence[ZooKeeperSession], steps: list[tuple[int, Step]]) -> list[str]:
    """What each operation answered, and the watches that had fired by then."""
    fired: list[str] = []
    told: list[str] = []
    known: dict[int, int] = {}

    def shown(value: Any) -> Any:
        """Without times and session ids; transactions are numbered as they come."""
        if isinstance(value, tuple) and hasattr(value, "_fields") and "czxid" in value._fields:
            zxids = [known.setdefault(zxid, len(known)) for zxid in (value.czxid, value.mzxid, value.pzxid)]
            return (
                zxids,
                value.version,
                value.cversion,
                bool(value.ephemeral_owner),
                value.data_length,
                value.num_children,
            )
        if isinstance(value, tuple | list):
            return [shown(one) for one in value]
        return value

    for number, (which, step) in enumerate(steps):
        zk = sessions[which]

        def seen(event: WatchEvent, which: int = which) -> None:
            fired.append(f"{which} {event.kind.value} {event.path}")

        try:
            answer = await step(zk, seen)
            if isinstance(answer, list) and answer and all(isinstance(one, str) for one in answer):
                answer = sorted(answer)
            if isinstance(answer, list) and any(isinstance(one, tuple) and len(one) == 3 for one in answer):
                answer = [one and (one[0], one[1], known.setdefault(one[2], len(known))) for one in answer]
            told.append(f"{number}: {shown(answer)}")
        except MultiFailed as failed:
            told.append(f"{number}: operation {failed.index}: {type(failed.error).__name__}")
        except ZkError as error:
            told.append(f"{number}: {type(error).__name__}")
        for session in sessions:
            await session.heartbeat()  # what has happened before is told before the answer
        told.append(f"   {sorted(fired)}")
        fired.clear()
    return told


def simulated(seed: int, steps: list[tuple[int, Step]]) -> list[str]:
    scheduler = Scheduler(Random(seed))
    network = Network(scheduler, lambda *_: None)
    server = ZooKeeper(network, lambda *_: None)
    loop = ProcessLoop(scheduler, network.host("client"), "client")

    async def play() -> list[str]:
        sessions = [SimulatedSession(server, loop, "zookeeper:2181", 4000) for _ in range(2)]
        for session in sessions:
            await session.start(10)
        return await played(sessions, steps)

    tasks: list[Any] = []
    loop.put(lambda: tasks.append(loop.create_task(play())))
    while not tasks or not tasks[0].done():
        scheduler.run(scheduler.now + 1)
    result: list[str] = tasks[0].result()
    loop.kill()
    return result


@pytest.mark.parametrize("seed", [0, 1, *(thorough(seed) for seed in range(2, 20))])
async def test_it_answers_as_a_real_one(seed: int, server: ZooKeeperServer) -> None:
    hosts = f"{server.connect}/seed{seed}"
    async with open_session(hosts) as first, open_session(hosts) as second:
        real = await played([first, second], steps_of(seed))
    for number, (ours, theirs) in enumerate(zip(simulated(seed, steps_of(seed)), real, strict=True)):
        assert ours == theirs, f"line {number}"
