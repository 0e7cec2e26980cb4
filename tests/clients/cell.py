"""What the test of one feature with one client uses: topics, the client's programs, an independent client, a kill."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.clients import Client
from tests.clients.disaster import Disaster
from tests.clients.peers import COMMITTED, AiokafkaPeer, ConfluentPeer, Outgoing, Peer, Record
from tests.clients.program import LIMIT_S, Program
from tests.clients.secured import Secured
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

UNTIL_STDIN_CLOSES = {"group", "pipeline", "run"}
"""The verbs that do not end by themselves; "run" is the verb of a framework."""


@dataclass(eq=False, slots=True)
class Cell:
    """One cell of the matrix. Its programs are killed when its test ends."""

    feature: str
    client: Client
    cluster: LocalCluster
    directory: Path
    disaster: Disaster | None = None
    secured: Secured | None = None
    """Only for SECURED_FEATURES; `cluster` is its cluster then."""
    note: str = ""
    """What the client does not have of a feature that it has."""
    _programs: list[Program] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def peer(self) -> Peer:
        return AiokafkaPeer() if self.client.is_librdkafka else ConfluentPeer()

    @property
    def name(self) -> str:
        """For transactional ids and groups."""
        return f"{self.client.name}-{self.feature}".replace(" ", "-")

    def topic(self, partitions: int = 1, first_leader: int | None = None) -> str:
        """A new topic of three replicas, which every broker knows. With `first_leader`, that broker leads all partitions."""
        if first_leader is None:
            name = new_topic(self.cluster.bootstrap_servers, partitions, 3, min_insync_replicas="2")
        else:
            others = [broker for broker in self.cluster.broker_ids if broker != first_leader]
            assignment = [[first_leader, *others]] * partitions
            name = new_topic(self.cluster.bootstrap_servers, assignment=assignment, min_insync_replicas="2")
        wait_known_everywhere(self.cluster, name, partitions)
        return name

    def start(self, verb: str, **request: Any) -> Program:
        """Starts the client's program; `request` is its JSON. Without "bootstrap", it connects to `cluster` in the clear."""
        log = self.directory / f"{self.name.replace('/', '-')}-{next(self._numbers)}.log"
        request = {"bootstrap": self.cluster.bootstrap_servers, **request}
        program = Program(self.client, verb, request, log, until_stdin_closes=verb in UNTIL_STDIN_CLOSES)
        self._programs.append(program)
        return program

    def start_producer(self, topic: str, values: Sequence[str], **changed: Any) -> Program:
        defaults = {"keys": None, "compression": "none", "acks": "all", "idempotent": False, "pause_ms": 0}
        return self.start("produce", topic=topic, values=list(values), **{**defaults, **changed})

    def start_reader(
        self, topic: str, start: Any, count: int, isolation: str = COMMITTED, **connection: Any
    ) -> Program:
        """Of partition 0."""
        task = {"topic": topic, "partition": 0, "from": start, "count": count, "isolation": isolation}
        return self.start("consume", **task, **connection)

    def write(self, topic: str, values: Sequence[str], partitions: int = 1) -> None:
        """By the independent client, to the partitions in turn."""
        outgoing = [Outgoing(value, number % partitions, f"key of {value}") for number, value in enumerate(values)]
        self.peer.write(self.cluster.bootstrap_servers, topic, outgoing)

    def read(self, topic: str, partitions: int = 1, isolation: str = COMMITTED) -> list[Record]:
        """By the independent client: everything that is there now."""
        return self.peer.read(self.cluster.bootstrap_servers, topic, partitions, isolation)

    def read_until(
        self, topic: str, is_enough: Callable[[list[Record]], bool], *, partitions: int = 1, what: str
    ) -> list[Record]:
        """Reads again until it is enough."""

        def records_if_enough() -> list[Record]:
            records = self.read(topic, partitions)
            return records if is_enough(records) else []

        found: list[Record] = eventually(records_if_enough, what, LIMIT_S)
        return found

    def kill_a_broker(self) -> None:
        """Returns when the broker of this feature is dead; it happens once for all clients that are tested side by side."""
        assert self.disaster is not None
        disaster, self.disaster = self.disaster, None
        disaster.happen()

    def close(self) -> None:
        for program in self._programs:
            program.kill()
        if self.disaster is not None:
            self.disaster.leave()


@contextlib.contextmanager
def closing(cell: Cell) -> Iterator[Cell]:
    try:
        yield cell
    finally:
        cell.close()
