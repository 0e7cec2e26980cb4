"""The faults of the outage table, each applied to a real cluster. Each fault returns the time at which it was over."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.types import TopicPartition
from protocol.zk.session import Stat, ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode, ReassignPartitionsZNode
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.faults.session_expiry import expire_session

SESSION_S = 6.0
DOWN_S = 2.0
"""How long a broker is down that is not restarted at once."""
PAUSE_S = 2.0
ZOOKEEPER_DOWN_S = 10.0
POLL_S = 0.02
TIMEOUT_S = 60.0
NOBODY = -1
PASSING_ERRORS = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Time for brokers and ZooKeeper to find each other after a fault."""


class Scene:
    """A cluster, one of its topics, and each broker's role."""

    def __init__(self, cluster: LocalCluster, topic: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.topic = topic
        self.chance = chance
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def make_topic(self, assignment: list[list[int]], min_insync: int) -> None:
        """Retries while brokers and ZooKeeper find each other. Raises TimeoutError, KafkaException."""
        config = {"min.insync.replicas": str(min_insync)}
        topic = NewTopic(self.topic, len(assignment), replica_assignment=assignment, config=config)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.admin.create_topics([topic])[self.topic].result(30)
                break
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    break
                if error.args[0].code() not in PASSING_ERRORS:
                    raise
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"topic {self.topic} was not created within {TIMEOUT_S:g} s: {error.args[0].str()}"
                    ) from None
            time.sleep(POLL_S)
        self.wait_for_full_isr(len(assignment[0]))

    def leaders(self) -> dict[int, int]:
        return {number: partition.leader for number, partition in self._partitions().items()}

    def replicas(self) -> dict[int, list[int]]:
        return {number: partition.replicas for number, partition in self._partitions().items()}

    def _partitions(self) -> dict[int, Any]:
        partitions: dict[int, Any] = self.admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions
        return partitions

    def leader(self) -> int:
        """A broker that leads and is not the controller. Raises TimeoutError."""
        found: set[int] = set()

        def is_known() -> bool:
            found.update(set(self.leaders().values()) - {self.cluster.controller_id(), NOBODY})
            return bool(found)

        until(is_known, f"a leader in {self.topic} beside the controller")
        return self.chance.choice(sorted(found))

    def wait_for_full_isr(self, replicas: int = 3) -> float:
        """Returns the time at which the ISR was full (monotonic seconds). Raises TimeoutError."""

        def is_full() -> bool:
            partitions = self._partitions().values()
            return all(len(p.isrs) == len(p.replicas) == replicas and p.leader in p.isrs for p in partitions)

        return until(is_full, f"full ISR of {self.topic}")

    def kill(self, broker: int) -> None:
        self.cluster.kill(broker)

    def stop(self, broker: int) -> None:
        """Sends SIGTERM and waits until the process has ended."""
        self.cluster.signal(broker, signal.SIGTERM)
        until(lambda: self.cluster.pid(broker) is None, f"end of broker {broker}")

    def start(self, broker: int) -> float:
        self.cluster.start_broker(broker)
        return time.monotonic()

    def pause(self, broker: int, seconds: float) -> float:
        self.cluster.pause(broker)
        try:
            time.sleep(seconds)
        finally:
            self.cluster.resume(broker)
        return time.monotonic()

    def zookeeper(self) -> EmbeddedZooKeeper:
        return EmbeddedZooKeeper(Path(self.cluster.directory) / "zookeeper")

    async def in_zookeeper(self, path: str, data: bytes | None) -> Stat | None:
        """The stat of a node; with `data`, the node is created first."""
        session = ZooKeeperSession(self.cluster.zookeeper_connect, session_timeout_ms=10_000)
        await session.start(10)
        try:
            if data is not None:
                await session.create(path, data)
            return await session.exists(path)
        finally:
            await session.close()


def until(check: Callable[[], bool], what: str) -> float:
    """Returns the time at which the check held (monotonic seconds); an unanswered request counts as not yet. Raises TimeoutError."""

    def is_so() -> bool:
        try:
            return check()
        except KafkaException as error:
            if error.args[0].code() in PASSING_ERRORS:
                return False
            raise

    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S:g} s for: {what}")
        time.sleep(POLL_S)
    return time.monotonic()


def kill(scene: Scene) -> float:
    victim = scene.leader()
    scene.kill(victim)
    time.sleep(DOWN_S)
    return scene.start(victim)


def kill_both(scene: Scene) -> float:
    victim = scene.cluster.controller_id()
    scene.kill(victim)
    time.sleep(DOWN_S)
    return scene.start(victim)


def stop(scene: Scene) -> float:
    victim = scene.leader()
    scene.stop(victim)
    time.sleep(DOWN_S)
    return scene.start(victim)


def bounce_kill(scene: Scene) -> float:
    victim = scene.leader()
    scene.kill(victim)
    return scene.start(victim)


def bounce_stop(scene: Scene) -> float:
    victim = scene.leader()
    scene.stop(victim)
    return scene.start(victim)


def short_pause(scene: Scene) -> float:
    return scene.pause(scene.leader(), PAUSE_S)


def long_pause(scene: Scene) -> float:
    return scene.pause(scene.leader(), SESSION_S * 1.5)


def three_controllers(scene: Scene) -> float:
    """Each controller restarts and is back in sync before the next one dies: three replicas cannot lose two."""
    over = time.monotonic()
    for _ in range(3):
        victim = scene.cluster.controller_id()
        scene.kill(victim)
        until(lambda gone=victim: scene.cluster.controller_id() not in (-1, gone), "another controller")  # type: ignore[misc]
        over = scene.start(victim)
        scene.wait_for_full_isr()
    return over


def paused_controller(scene: Scene) -> float:
    return scene.pause(scene.cluster.controller_id(), SESSION_S * 1.5)


def expired_session(scene: Scene) -> float:
    stat = asyncio.run(scene.in_zookeeper(BrokerIdZNode.path(scene.leader()), None))
    assert stat is not None
    expire_session(scene.zookeeper().address, stat.ephemeral_owner)
    return time.monotonic()


def zookeeper_down(scene: Scene) -> float:
    zookeeper = scene.zookeeper()
    zookeeper.process.kill()
    time.sleep(ZOOKEEPER_DOWN_S)
    zookeeper.start()
    zookeeper.wait_ready(TIMEOUT_S)
    return time.monotonic()


def zookeeper_restarted(scene: Scene) -> float:
    zookeeper = scene.zookeeper()
    zookeeper.process.kill()
    zookeeper.start()
    zookeeper.wait_ready(TIMEOUT_S)
    return time.monotonic()


def _move_all(scene: Scene) -> None:
    """Moves every partition from its leader to broker 4, which has none of them."""
    targets = {}
    for partition, leader in scene.leaders().items():
        others = [broker for broker in (1, 2, 3) if broker != leader]
        targets[TopicPartition(scene.topic, partition)] = (4, *others)
    asyncio.run(scene.in_zookeeper(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(targets)))


def _wait_for_the_move(scene: Scene) -> None:
    until(lambda: all(len(r) == 3 and r[0] == 4 for r in scene.replicas().values()), "all partitions on broker 4")


def reassignment(scene: Scene) -> float:
    _move_all(scene)
    _wait_for_the_move(scene)
    return time.monotonic()


def reassignment_with_a_kill(scene: Scene) -> float:
    _move_all(scene)
    time.sleep(scene.chance.uniform(0, 0.2))
    victim = scene.chance.choice([broker for broker in (1, 2, 3) if broker != scene.cluster.controller_id()])
    scene.kill(victim)
    time.sleep(DOWN_S)
    over = scene.start(victim)
    _wait_for_the_move(scene)
    return over


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table: the fault, the result of Kafka 3.9.1 (median / worst), and our goal."""

    title: str
    do: Callable[[Scene], float]
    kafka_outage: str
    kafka_healed: str
    goal_outage: str
    goal_healed: str
    brokers: int = 3


FAULTS = {
    "kill": Fault("SIGKILL of a leader", kill, "6.8 / 7.3", "2.7 / 3.2", "0.5", "1"),
    "kill-both": Fault("SIGKILL of leader and controller in one", kill_both, "-", "-", "0.5", "1"),
    "stop": Fault("SIGTERM", stop, "1.2 / 1.4", "1.3 / 1.4", "0.2", "1"),
    "bounce-kill": Fault("bounce < 1 s, kill", bounce_kill, "6.8", "2.5", "0.5", "1"),
    "bounce-stop": Fault("bounce < 1 s, term", bounce_stop, "2.2", "3.4", "0.3", "1"),
    "short-pause": Fault("paused 2 s, below the session", short_pause, "2.0", "0", "the pause (2)", "0.3"),
    "long-pause": Fault("paused 9 s, above the session", long_pause, "8.3", "0.7", "session + 0.2 (6.2)", "0.3"),
    "controllers": Fault("controller killed three times", three_controllers, "11.3", "1.4", "1.5", "1"),
    "paused-controller": Fault("controller paused 9 s", paused_controller, "7.7", "0.9", "session + 0.2 (6.2)", "0.5"),
    "session": Fault("ZooKeeper session expired", expired_session, "1.3", "0.2", "0.3", "0.3"),
    "zookeeper-down": Fault("ZooKeeper down 10 s", zookeeper_down, "0-0.4", "0", "0", "0"),
    "zookeeper-restart": Fault("ZooKeeper restarted", zookeeper_restarted, "0-0.4", "0", "0", "0"),
    "reassign": Fault("reassignment, plain", reassignment, "2.2", "0", "0.2", "1", brokers=4),
    "reassign-kill": Fault(
        "reassignment with a kill", reassignment_with_a_kill, "6.9-8.0", "0-3.4", "0.5", "1", brokers=4
    ),
}
