"""What a fault needs of a cluster.

`processes.py` has it for a cluster of this machine, `containers.py` for one in containers, `commanded.py` for any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol


class State(Enum):
    """What a process or container does."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


class Victim(Protocol):
    """What a fault hits. The methods have the names of the actions."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def expire_session(self) -> None: ...


class Node(Victim, Protocol):
    """A broker or ZooKeeper as a victim. The methods raise ClusterError; those of ZooKeeper also ZooKeeperError."""

    @property
    def broker_id(self) -> int | None:
        """None: it is ZooKeeper."""

    def state(self) -> State: ...


class Cluster(Protocol):
    """A cluster that faults hit."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """All brokers, also those that have ended."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,...` of all brokers, by id, as clients on this machine reach them."""

    @property
    def impossible(self) -> Mapping[str, str]:
        """Action -> why this kind of cluster cannot have it."""

    def address(self, broker_id: int) -> tuple[str, int]:
        """Where this machine reaches the broker."""

    def broker(self, broker_id: int) -> Node: ...

    def zookeeper(self) -> Node | None:
        """None if the cluster uses a ZooKeeper that is not its own."""
