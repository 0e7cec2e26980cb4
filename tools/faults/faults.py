"""Faults of processes in a local cluster, each with its undo."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.zookeeper import EmbeddedZooKeeper, ZooKeeperError
from tools.faults.session_expiry import expire_session

ZOOKEEPER_TIMEOUT_S = 60.0


class Victim(Protocol):
    """A process that a fault hits. The methods have the names of the actions."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def expire_session(self) -> None: ...


@dataclass(frozen=True)
class Broker:
    """A broker as a victim. The methods raise ClusterError."""

    cluster: LocalCluster
    id: int

    def kill(self) -> None:
        self.cluster.kill(self.id)

    def stop(self) -> None:
        self.cluster.stop_broker(self.id)

    def start(self) -> None:
        self.cluster.start_broker(self.id)

    def pause(self) -> None:
        self.cluster.pause(self.id)

    def resume(self) -> None:
        self.cluster.resume(self.id)

    def expire_session(self) -> None:
        """Ends the broker's session. The broker learns of it from ZooKeeper only. Raises also LookupError, OSError, ZkError."""
        owner = asyncio.run(self._session_id())
        if owner is None:
            raise ClusterError(f"broker {self.id} is not registered, so it has no session")
        expire_session(_zookeeper(self.cluster).address, owner)

    async def _session_id(self) -> int | None:
        session = ZooKeeperSession(self.cluster.zookeeper_connect, session_timeout_ms=10_000)
        await session.start(10)
        try:
            stat = await session.exists(BrokerIdZNode.path(self.id))
        finally:
            await session.close()
        return None if stat is None else stat.ephemeral_owner


@dataclass(frozen=True)
class ZooKeeper:
    """The embedded ZooKeeper as a victim. A stop is a kill, because all its data is in its transaction log."""

    cluster: LocalCluster

    def kill(self) -> None:
        _zookeeper(self.cluster).process.kill()

    stop = kill

    def start(self) -> None:
        """Returns when it serves. Raises ZooKeeperError."""
        zookeeper = _zookeeper(self.cluster)
        zookeeper.start()
        zookeeper.wait_ready(ZOOKEEPER_TIMEOUT_S)

    def pause(self) -> None:
        _zookeeper(self.cluster).process.send(signal.SIGSTOP)

    def resume(self) -> None:
        _zookeeper(self.cluster).process.send(signal.SIGCONT)

    def expire_session(self) -> None:
        raise ClusterError("ZooKeeper has no session of its own")


def _zookeeper(cluster: LocalCluster) -> EmbeddedZooKeeper:
    """Raises ClusterError."""
    zookeeper = EmbeddedZooKeeper(Path(cluster.directory) / "zookeeper")
    if not zookeeper.exists():
        raise ClusterError(f"{cluster.directory} has no ZooKeeper of its own to harm")
    return zookeeper


@dataclass(frozen=True)
class Action:
    """`undo` is None if there is nothing to undo."""

    do: Callable[[Victim], None]
    undo: Callable[[Victim], None] | None


ACTIONS = {
    "kill": Action(lambda victim: victim.kill(), lambda victim: victim.start()),
    "stop": Action(lambda victim: victim.stop(), lambda victim: victim.start()),
    "pause": Action(lambda victim: victim.pause(), lambda victim: victim.resume()),
    "expire-session": Action(lambda victim: victim.expire_session(), None),
}
"""A bounce is a kill that is undone at once; a restart is a stop that is undone at once."""


def inject(action: str, victims: Sequence[Victim], seconds: float = 0.0) -> float:
    """Hits all victims, waits `seconds`, and undoes the fault whatever happens. Returns the time of its end (monotonic seconds)."""
    done: list[Victim] = []
    try:
        for victim in victims:
            ACTIONS[action].do(victim)
            done.append(victim)
        time.sleep(seconds)
    finally:
        _to_all(ACTIONS[action].undo, done)
    return time.monotonic()


@contextmanager
def healed(cluster: LocalCluster) -> Iterator[None]:
    """Heals the cluster at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        heal(cluster)


def heal(cluster: LocalCluster) -> None:
    """Resumes every paused process and starts every ended one, ZooKeeper first, whoever caused it. See `_to_all` for errors."""
    zookeeper = [ZooKeeper(cluster)] if cluster.zookeeper is not None else []
    brokers = [Broker(cluster, broker) for broker in cluster.broker_ids]
    paused: list[Victim] = [*zookeeper, *(broker for broker in brokers if cluster.is_paused(broker.id))]
    ended: list[Victim] = [broker for broker in brokers if cluster.pid(broker.id) is None]
    if cluster.zookeeper is not None and cluster.zookeeper.pid() is None:
        ended.insert(0, *zookeeper)
    _to_all(ACTIONS["pause"].undo, paused)
    _to_all(ACTIONS["kill"].undo, ended)


def _to_all(act: Callable[[Victim], None] | None, victims: Sequence[Victim]) -> None:
    """Continues with the other victims after an error. At the end raises the first ClusterError or ZooKeeperError."""
    if act is None:
        return
    errors: list[Exception] = []
    for victim in victims:
        try:
            act(victim)
        except (ClusterError, ZooKeeperError) as error:
            errors.append(error)
    if errors:
        raise errors[0]
