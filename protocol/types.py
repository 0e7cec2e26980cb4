"""The nouns that broker, controller and tools share. Values only: frozen, without behaviour that needs the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_LEADER = -1
"""The `leader` of a partition that has none (Kafka's LeaderAndIsr.NoLeader)."""

LEADER_DURING_DELETE = -2
"""The `leader` that UpdateMetadata gives a partition whose topic is gone (Kafka's LeaderAndIsr.LeaderDuringDelete)."""

NO_EPOCH = -1
"""An unknown leader epoch, controller epoch or broker epoch."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Kafka does, `topic-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Endpoint(NamedTuple):
    """Where a broker listens under the name of one listener."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.listener}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker as its znode describes it. `epoch` is the znode's czxid (STA-3)."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of that listener, or None when the broker has no such listener."""
        return next((e for e in self.endpoints if e.listener == listener), None)


class LeaderAndIsr(NamedTuple):
    """The content of a partition's state znode, with the znode's version (-1: not read from, nor written to, ZooKeeper)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of a partition (AR); in a reassignment also those that come and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
