"""The types that broker, controller and tools share: immutable values without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NO_LEADER: Final = -1
"""The `leader` of a partition without one (Kafka's LeaderAndIsr.NoLeader)."""

LEADER_DURING_DELETE: Final = -2
"""The `leader` in UpdateMetadata of a partition whose topic is deleted (Kafka's LeaderAndIsr.LeaderDuringDelete)."""

NO_EPOCH: Final = -1
"""An unknown leader epoch, controller epoch or broker epoch."""

Address = tuple[str, int]
"""Host and port."""
Buffer = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text is Kafka's, for example `topic-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ClientSoftware(NamedTuple):
    """What a client says of itself in ApiVersions (KIP-511); empty if it does not."""

    name: str = ""
    version: str = ""


class Endpoint(NamedTuple):
    """A broker's address on one listener."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.listener}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker as described by its znode. `epoch` is the znode's czxid (STA-3)."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """The endpoint of that listener; None if the broker does not have the listener."""
        return next((e for e in self.endpoints if e.listener == listener), None)


class LeaderAndIsr(NamedTuple):
    """The content of a partition's state znode, with the znode's version (-1 if not yet read from or written to ZooKeeper)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of a partition (AR). During a reassignment, `adding` and `removing` are parts of them."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class Principal(NamedTuple):
    """Who sends the requests of a connection, as Kafka's KafkaPrincipal. As text: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


USER: Final = "User"
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Whoever has not shown who it is."""
