"""The processes of a local cluster as victims of faults."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.faults.cluster import State
from tools.faults.session_expiry import expire_session

ZOOKEEPER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Broker:
    """A broker as a victim. The methods raise ClusterError."""

    cluster: LocalCluster
    broker_id: int

    def state(self) -> State:
        if self.cluster.pid(self.broker_id) is None:
            return State.ENDED
        return State.PAUSED if self.cluster.is_paused(self.broker_id) else State.RUNNING

    def kill(self) -> None:
        self.cluster.kill(self.broker_id)

    def stop(self) -> None:
        self.cluster.stop_broker(self.broker_id)

    def start(self) -> None:
        self.cluster.start_broker(self.broker_id)

    def pause(self) -> None:
        self.cluster.pause(self.broker_id)

    def resume(self) -> None:
        self.cluster.resume(self.broker_id)

    def expire_session(self) -> None:
        """Ends the broker's session. The broker learns of it from ZooKeeper only. Raises also LookupError, OSError, ZkError."""
        owner = asyncio.run(self._session_id())
        if owner is None:
            raise ClusterError(f"broker {self.broker_id} is not registered, so it has no session")
        expire_session(_zookeeper(self.cluster).address, owner)

    async def _session_id(self) -> int | None:
        session = ZooKeeperSession(self.cluster.zookeeper_connect, session_timeout_ms=10_000)
        await session.start(10)
        try:
            stat = await session.exists(BrokerIdZNode.path(self.broker_id))
        finally:
            await session.close()
        return None if stat is None else stat.ephemeral_owner


@dataclass(frozen=True)
class ZooKeeper:
    """The embedded ZooKeeper as a victim. A stop is a kill, because all its data is in its transaction log."""

    cluster: LocalCluster
    broker_id = None

    def state(self) -> State:
        process = _zookeeper(self.cluster).process
        if process.pid() is None:
            return State.ENDED
        return State.PAUSED if process.is_paused() else State.RUNNING

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
class ProcessCluster:
    """A local cluster, for faults of its processes."""

    cluster: LocalCluster

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self.cluster.broker_ids

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def impossible(self) -> Mapping[str, str]:
        return {}

    def address(self, broker_id: int) -> tuple[str, int]:
        host, _, port = self.cluster.address(broker_id).rpartition(":")
        return host, int(port)

    def broker(self, broker_id: int) -> Broker:
        return Broker(self.cluster, broker_id)

    def zookeeper(self) -> ZooKeeper | None:
        return None if self.cluster.zookeeper is None else ZooKeeper(self.cluster)
