"""The faults of the outage table, each applied to a real cluster. Each fault returns the time at which it was over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.types import TopicPartition
from protocol.zk.session import ZooKeeperSession
from protocol.zk.znodes import ReassignPartitionsZNode
from tools.cluster.local_cluster import LocalCluster
from tools.faults.cluster import Victim
from tools.faults.faults import inject
from tools.faults.processes import Broker, ProcessCluster, ZooKeeper
from tools.faults.roles import Roles
from tools.faults.waiting import until

SESSION_S = 6.0
DOWN_S = 2.0
"""How long a broker stays down, unless the fault is a bounce."""
PAUSE_S = 2.0
LONG_PAUSE_S = 1.5 * SESSION_S
SESSION_GOAL = "session + 0.2 (6.2)"
ZOOKEEPER_DOWN_S = 10.0
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
"""Errors that pass once brokers and ZooKeeper have found each other again after a fault."""


class Scene:
    """A cluster, one of its topics, and each broker's role."""

    def __init__(self, cluster: LocalCluster, topic: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.topic = topic
        self.chance = chance
        self.roles = Roles(ProcessCluster(cluster))
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def make_topic(self, assignment: list[list[int]], min_insync: int) -> None:
        """Retries while brokers and ZooKeeper find each other. Raises TimeoutError, KafkaException."""
        config = {"min.insync.replicas": str(min_insync)}
        topic = NewTopic(self.topic, len(assignment), replica_assignment=assignment, config=config)
        until(lambda: self._is_created(topic), f"topic {self.topic}")
        self.wait_for_full_isr()

    def _is_created(self, topic: NewTopic) -> bool:
        try:
            self.admin.create_topics([topic])[self.topic].result(30)
        except KafkaException as error:
            code = error.args[0].code()
            if code != KafkaError.TOPIC_ALREADY_EXISTS and code not in PASSING_ERRORS:
                raise
            return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def leaders(self) -> dict[int, int]:
        """Partition -> leader, of those that have one."""
        views = self.roles.partitions(self.topic).items()
        return {number: view.leader for number, view in views if view.leader is not None}

    def victim(self, role: str) -> Victim:
        """The process for `zookeeper`, `controller`, or `leader`: a leader that is not the controller. Raises TimeoutError."""
        if role == "zookeeper":
            return ZooKeeper(self.cluster)
        return Broker(self.cluster, self.leader() if role == "leader" else self.controller())

    def leader(self) -> int:
        """A broker that leads and is not the controller. Raises TimeoutError."""
        found: set[int] = set()

        def is_known() -> bool:
            found.update(set(self.leaders().values()) - {self.roles.controller()})
            return bool(found)

        until(is_known, f"a leader in {self.topic} beside the controller")
        return self.chance.choice(sorted(found))

    def controller(self, but: int | None = None) -> int:
        """The controller, once it is not `but`. Raises TimeoutError."""
        found: list[int] = []

        def is_known() -> bool:
            controller = self.roles.controller()
            if controller is not None and controller != but:
                found.append(controller)
            return bool(found)

        until(is_known, "another controller")
        return found[0]

    def wait_for_full_isr(self) -> float:
        """Returns the time at which the ISR was full (monotonic seconds). Raises TimeoutError."""

        def is_full() -> bool:
            views = self.roles.partitions(self.topic).values()
            return bool(views) and all(view.is_in_sync() for view in views)

        return until(is_full, f"full ISR of {self.topic}")


def injected(action: str, role: str, seconds: float = 0.0) -> Callable[[Scene], float]:
    return lambda scene: inject(action, [scene.victim(role)], seconds)


def three_controllers(scene: Scene) -> float:
    """Each controller restarts and is back in sync before the next one dies: three replicas cannot lose two."""
    over = time.monotonic()
    for _ in range(3):
        victim = scene.controller()
        scene.cluster.kill(victim)
        scene.controller(but=victim)
        scene.cluster.start_broker(victim)
        over = time.monotonic()
        scene.wait_for_full_isr()
    return over


def _move_all(scene: Scene) -> None:
    """Moves every partition from its leader to broker 4, which has none of them."""
    targets = {}
    for partition, leader in scene.leaders().items():
        others = [broker for broker in (1, 2, 3) if broker != leader]
        targets[TopicPartition(scene.topic, partition)] = (4, *others)

    async def ask() -> None:
        session = ZooKeeperSession(scene.cluster.zookeeper_connect, session_timeout_ms=10_000)
        await session.start(10)
        try:
            await session.create(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(targets))
        finally:
            await session.close()

    asyncio.run(ask())


def _wait_for_the_move(scene: Scene) -> None:
    def is_moved() -> bool:
        views = scene.roles.partitions(scene.topic).values()
        return bool(views) and all(len(view.replicas) == 3 and view.replicas[0] == 4 for view in views)

    until(is_moved, "all partitions on broker 4")


def reassignment(scene: Scene) -> float:
    _move_all(scene)
    _wait_for_the_move(scene)
    return time.monotonic()


def reassignment_with_a_kill(scene: Scene) -> float:
    _move_all(scene)
    time.sleep(scene.chance.uniform(0, 0.2))
    controller = scene.roles.controller()
    victim = scene.chance.choice([broker for broker in (1, 2, 3) if broker != controller])
    over = inject("kill", [Broker(scene.cluster, victim)], DOWN_S)
    _wait_for_the_move(scene)
    return over


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table: the fault, the times of Kafka 3.9.1 (median / worst), and the goals, in seconds."""

    title: str
    do: Callable[[Scene], float]
    kafka_outage: str
    kafka_healed: str
    goal_outage: str
    goal_healed: str
    brokers: int = 3


FAULTS = {
    "kill": Fault("SIGKILL of a leader", injected("kill", "leader", DOWN_S), "6.8 / 7.3", "2.7 / 3.2", "0.5", "1"),
    "kill-both": Fault(
        "SIGKILL of leader and controller in one", injected("kill", "controller", DOWN_S), "-", "-", "0.5", "1"
    ),
    "stop": Fault("SIGTERM", injected("stop", "leader", DOWN_S), "1.2 / 1.4", "1.3 / 1.4", "0.2", "1"),
    "bounce-kill": Fault("bounce < 1 s, kill", injected("kill", "leader"), "6.8", "2.5", "0.5", "1"),
    "bounce-stop": Fault("bounce < 1 s, term", injected("stop", "leader"), "2.2", "3.4", "0.3", "1"),
    "short-pause": Fault(
        "paused 2 s, below the session", injected("pause", "leader", PAUSE_S), "2.0", "0", "the pause (2)", "0.3"
    ),
    "long-pause": Fault(
        "paused 9 s, above the session", injected("pause", "leader", LONG_PAUSE_S), "8.3", "0.7", SESSION_GOAL, "0.3"
    ),
    "controllers": Fault("controller killed three times", three_controllers, "11.3", "1.4", "1.5", "1"),
    "paused-controller": Fault(
        "controller paused 9 s", injected("pause", "controller", LONG_PAUSE_S), "7.7", "0.9", SESSION_GOAL, "0.5"
    ),
    "session": Fault("ZooKeeper session expired", injected("expire-session", "leader"), "1.3", "0.2", "0.3", "0.3"),
    "zookeeper-down": Fault(
        "ZooKeeper down 10 s", injected("kill", "zookeeper", ZOOKEEPER_DOWN_S), "0-0.4", "0", "0", "0"
    ),
    "zookeeper-restart": Fault("ZooKeeper restarted", injected("kill", "zookeeper"), "0-0.4", "0", "0", "0"),
    "reassign": Fault("reassignment, plain", reassignment, "2.2", "0", "0.2", "1", brokers=4),
    "reassign-kill": Fault(
        "reassignment with a kill", reassignment_with_a_kill, "6.9-8.0", "0-3.4", "0.5", "1", brokers=4
    ),
}
