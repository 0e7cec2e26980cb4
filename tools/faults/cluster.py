"""What a fault needs of a cluster.

`processes.py` has it for a cluster of this machine, `containers.py` for one in containers, `commanded.py` for any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

from protocol.conversation.rule import Rule
from tools.faults.words import Breakage
from tools.wire.security import Security

OF_REQUESTS = "requests"
"""Faults in single requests, in `Cluster.impossible`."""


class State(Enum):
    """What a process or container does."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


class Victim(Protocol):
    """A process that a fault hits. The methods have the names of the actions."""

    def state(self) -> State: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Node(Victim, Protocol):
    """A broker or ZooKeeper as a victim. The methods raise ClusterError, FaultError; those of ZooKeeper also ZooKeeperError."""

    @property
    def broker_id(self) -> int | None:
        """None: it is ZooKeeper."""

    def expire_session(self) -> None: ...

    def sever(self, breakage: Breakage) -> None:
        """Breaks links until `join` with the same breakage."""

    def join(self, breakage: Breakage | None) -> None:
        """Undoes `sever`; without a breakage, everything that was severed here. Does nothing if there is nothing to undo."""

    def add_rule(self, rule: Rule) -> None:
        """What is to happen to requests. Of brokers only."""

    def remove_rules(self, ids: Sequence[str] | None) -> None:
        """None: all. Does nothing if there are none."""

    def fill_disk(self) -> None: ...

    def free_disk(self) -> None:
        """Undoes `fill_disk`, with a restart: a log directory that failed stays offline until then. Does nothing if it is not filled."""


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
        """Action, OF_REQUESTS, or word of a broken link (from, delay, throttle, half) -> why this cluster cannot have it."""

    @property
    def record_file(self) -> Path:
        """Where the faults of this cluster are written down until they are healed (`record.py`)."""

    @property
    def security(self) -> Security:
        """How this machine connects to the brokers."""

    def address(self, broker_id: int) -> tuple[str, int]:
        """Where this machine reaches the broker."""

    def broker(self, broker_id: int) -> Node: ...

    def shared_claims(self) -> str:
        """A new directory of which all brokers take what a rule may hit (`Rule.claims`); empty: there is none. Raises ClusterError."""

    def drop_claims(self) -> None:
        """Removes the directories of `shared_claims`."""

    def zookeeper(self) -> Node | None:
        """None if the cluster uses a ZooKeeper that is not its own."""
