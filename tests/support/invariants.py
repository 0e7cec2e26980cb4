"""What must be true of a cluster once it is quiet again (INV-4, INV-5, INV-27): replica logs, ISRs, metadata."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import iter_batches
from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import PartitionStateZNode, TopicZNode
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster


def eventually(
    check: Callable[[], Any], what: str, timeout_s: float = 60.0, now: Callable[[], float] = time.monotonic
) -> Any:
    """Polls `check` until it returns something true; fails with `what` and its last answer after `timeout_s`, by the clock `now`."""
    deadline = now() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        assert now() < deadline, f"not in {timeout_s} s: {what}; last answer {answer!r}"
        time.sleep(0.02)


class ZooKeeperView:
    """The cluster as ZooKeeper has it, through a client of the test's own."""

    def __init__(self, connect: str, certificate: Path | None = None, trusted: Path | None = None) -> None:
        """`certificate`: a file of PEM with a key and its certificate, for a ZooKeeper with TLS, whose authority is in `trusted`."""
        files = (certificate, certificate, trusted)
        tls = {
            key: str(path) for key, path in zip(("keyfile", "certfile", "ca"), files, strict=True) if path is not None
        }
        self.client = KazooClient(connect, timeout=10, use_ssl=certificate is not None, **tls)
        self.client.start(timeout=20)

    @classmethod
    def of(cls, cluster: LocalCluster) -> ZooKeeperView:
        """That of a cluster, also if it is secured and has its own."""
        secured = cluster.secured
        if secured is None or not secured.zookeeper_file.exists():
            return cls(cluster.zookeeper_connect)
        return cls(cluster.zookeeper_connect, secured.zookeeper_file, secured.authority_file)

    def metadata(self, topic: str) -> Metadata:
        """What every broker should answer of that topic."""
        assignment = self.assignment(topic)
        states = self.states(topic).items()
        partitions = {p: (s.leader, s.leader_epoch, assignment[p].replicas, tuple(sorted(s.isr))) for p, s in states}
        return self.live_brokers(), self.controller(), partitions

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def controller(self) -> int | None:
        try:
            return int(json.loads(self.client.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def controller_epoch(self) -> int:
        return int(self.client.get("/controller_epoch")[0])

    def live_brokers(self) -> list[int]:
        return sorted(int(name) for name in self.client.get_children("/brokers/ids"))

    def topics(self) -> list[str]:
        return sorted(self.client.get_children("/brokers/topics"))

    def assignment(self, topic: str) -> dict[int, Assignment]:
        return TopicZNode.decode(self.client.get(TopicZNode.path(topic))[0])[1]

    def state(self, topic: str, partition: int) -> LeaderAndIsr:
        data, stat = self.client.get(PartitionStateZNode.path(TopicPartition(topic, partition)))
        return PartitionStateZNode.decode(data, stat.version)

    def states(self, topic: str) -> dict[int, LeaderAndIsr]:
        return {p: self.state(topic, p) for p in sorted(self.assignment(topic))}


def victim_of(role: str, zk: ZooKeeperView, topic: str) -> int:
    """The broker with the role: a `leader` that is not the controller, the `controller`, or `both`. Of a topic that all brokers lead."""
    controller = int(eventually(zk.controller, "a controller"))
    leaders = {state.leader for state in zk.states(topic).values()}
    if role == "leader":
        return min(leaders - {controller})
    assert role == "controller" or controller in leaders
    return controller


def batches_on_disk(partition_directory: Path) -> list[tuple[int, int, int, int]]:
    """(base offset, leader epoch, CRC, size) of each batch of a replica, in log order."""
    found = []
    for segment in sorted(partition_directory.glob("*.log")):
        data = segment.read_bytes()
        found += [
            (h.base_offset, h.partition_leader_epoch, h.crc, h.size_in_bytes) for _, h in iter_batches(memoryview(data))
        ]
    return found


def replica_directory(cluster: LocalCluster, broker: int, topic: str, partition: int) -> Path:
    return Path(cluster.directory) / f"broker-{broker}" / "data" / f"{topic}-{partition}"


def assert_healed(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, log_starts: Mapping[int, int] | None = None
) -> None:
    """Full ISR and a leader everywhere, equal replica logs, and the same metadata on every broker as in ZooKeeper.

    Below the `log_starts` of partitions, where DeleteRecords has cut them, a replica may or may not have records.
    Every broker must answer first: right after a kill and a start, ZooKeeper still has the earlier ISR.
    """
    assert_known_alike(cluster, zk, topic)
    wait_full_isr(zk, topic)
    assignment = zk.assignment(topic)

    # A topic that is written to meanwhile is compared up to here: its replicas' ends never stand still together.
    last_offset = {
        p: max(
            (
                batch[0]
                for b in assignment[p].replicas
                for batch in batches_on_disk(replica_directory(cluster, b, topic, p))
            ),
            default=-1,
        )
        for p in assignment
    }

    def compared_batches(broker: int, partition: int) -> tuple[tuple[int, int, int, int], ...]:
        batches = batches_on_disk(replica_directory(cluster, broker, topic, partition))
        start = (log_starts or {}).get(partition, 0)
        return tuple(batch for batch in batches if start <= batch[0] <= last_offset[partition])

    def last_batches() -> dict[int, dict[int, tuple[int, tuple[tuple[int, int, int, int], ...]]]]:
        """Partition -> broker -> (number of batches, the last ones), of the partitions whose replicas differ."""
        found = {p: {b: compared_batches(b, p) for b in assignment[p].replicas} for p in assignment}
        return {
            p: {b: (len(batches), batches[-3:]) for b, batches in replicas.items()}
            for p, replicas in found.items()
            if len(set(replicas.values())) > 1
        }

    eventually(lambda: Compared(last_batches(), {}), f"replica logs of {topic} equal batch by batch")

    assert_known_alike(cluster, zk, topic)


def wait_full_isr(zk: ZooKeeperView, topic: str) -> None:
    assignment = zk.assignment(topic)

    def isr_is_full() -> bool:
        return all(s.leader in s.isr and set(s.isr) == set(assignment[p].replicas) for p, s in zk.states(topic).items())

    eventually(isr_is_full, f"full ISR of every partition of {topic}")


def assert_known_alike(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    """The same metadata on every broker as in ZooKeeper. A broker that is starting does not answer yet."""

    def compared(broker: int) -> Compared:
        try:
            answered = metadata_of(cluster, topic, broker)
        except OSError:
            answered = None
        return Compared(answered, zk.metadata(topic))

    for broker in cluster.broker_ids:
        eventually(lambda b=broker: compared(b), f"metadata of {broker}")


def wait_known_everywhere(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Returns when every broker lists the new topic. CreateTopics is answered when the controller alone knows it."""
    for broker in cluster.broker_ids:
        eventually(lambda b=broker: len(metadata_of(cluster, topic, b)[2]) == partitions, f"{broker} knows {topic}")


@dataclass(frozen=True, slots=True)
class Compared:
    """True when both are equal."""

    answered: Any
    in_zookeeper: Any

    def __bool__(self) -> bool:
        return bool(self.answered == self.in_zookeeper)


Metadata = tuple[list[int], int | None, dict[int, tuple[int, int, tuple[int, ...], tuple[int, ...]]]]
"""(live brokers, controller, partition -> (leader, leader epoch, replicas, ISR))"""


def metadata_of(cluster: LocalCluster, topic: str, broker: int) -> Metadata:
    """What that broker answers."""
    host, _, port = cluster.address(broker).rpartition(":")
    with Wire(int(port), host) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    (answered,) = answer.topics
    partitions = {
        p.partition_index: (p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(sorted(p.isr_nodes)))
        for p in answered.partitions
    }
    return sorted(b.node_id for b in answer.brokers), answer.controller_id, partitions
