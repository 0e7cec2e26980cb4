"""What every cluster with TLS or SASL on all listeners must do, and listeners beside that of the brokers."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import OwnProperties
from tests.support.certificates import Certificates
from tests.support.invariants import ZooKeeperView, eventually
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of

AT_ONCE_S = 10.0
"""Less than the session time-out of these clusters, 30 s."""


def create(client: Mapping[str, Any], topic: str, partitions: int = 3) -> str:
    """`client`: settings of librdkafka. The topic has three replicas."""
    admin = AdminClient(dict(client))
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(30)
    return topic


def replaces_a_killed_leader(cluster: LocalCluster, zk: ZooKeeperView, client: Mapping[str, Any]) -> None:
    """CTL-16: the others notice at once, and what was acknowledged is read once. The killed broker is back in the end."""
    topic = create(client, "killed")
    acked: list[bytes] = []
    producer = Producer({**client, "acks": "all", "enable.idempotence": True, "retry.backoff.ms": 50})

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce(
                topic,
                str(number).encode().ljust(1000),
                partition=number % 3,
                on_delivery=lambda error, message: acked.append(message.value()) if error is None else None,
            )
            producer.poll(0)

    produce(range(3000))
    assert producer.flush(30) == 0
    victim = zk.state(topic, 0).leader
    cluster.signal(victim, signal.SIGKILL)
    produce(range(3000, 6000))
    eventually(lambda: victim not in zk.live_brokers(), "it is unregistered, long before its session ends", AT_ONCE_S)
    assert producer.flush(30) == 0
    assert len(acked) == 6000
    with closing(Consumer({**client, "group.id": "all", "enable.auto.commit": False})) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(3)])
        read: list[bytes] = []
        while len(read) < 6000 and (some := consumer.consume(1000, 30)):
            read += [message.value() for message in some if message.error() is None]
    assert sorted(read) == sorted(acked)
    _start_again(cluster, zk, topic, victim)


def hands_leaderships_over(cluster: LocalCluster, zk: ZooKeeperView, client: Mapping[str, Any]) -> None:
    """STA-2: a broker that stops asks the controller for a ControlledShutdown. It is back in the end."""
    topic = create(client, "stopped")
    leader = zk.state(topic, 0).leader
    cluster.stop_broker(leader)
    kinds = [row["kind"] for b in cluster.broker_ids for row in events_of(cluster.broker_directory(b) / "events.jsonl")]
    assert "controlled_shutdown" in kinds
    assert zk.state(topic, 0).leader not in (leader, -1)
    _start_again(cluster, zk, topic, leader)


def replaces_a_killed_controller(cluster: LocalCluster, zk: ZooKeeperView, topic: str, partitions: int) -> None:
    """Of two brokers, the other one removes its node and leads all partitions. The killed broker is back in the end."""
    victim = zk.controller()
    assert victim is not None
    cluster.signal(victim, signal.SIGKILL)
    eventually(lambda: victim not in zk.live_brokers(), "the other broker removes its node", 20.0)
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(100):
        producer.produce(
            topic,
            b"x",
            partition=number % partitions,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed
    cluster.start_broker(victim)
    eventually(lambda: all(len(state.isr) == 2 for state in zk.states(topic).values()), "it is in sync again", 40)


def _start_again(cluster: LocalCluster, zk: ZooKeeperView, topic: str, broker: int) -> None:
    cluster.start_broker(broker)
    eventually(lambda: all(len(s.isr) == 3 for s in zk.states(topic).values()), "the ISRs are full again", 30)


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def login_listener(
    name: str, made: Certificates, mechanisms: Sequence[str], users: Mapping[str, str]
) -> dict[str, str]:
    """Overrides of a cluster whose brokers have a listener of SASL_SSL beside the one in the clear, by `more_listeners`.

    `users`: those of PLAIN, with their passwords. The one in the clear stays the address of the cluster's brokers for tests.
    """
    prefix = f"listener.name.{name.lower()}"
    known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
    return {
        "inter.broker.listener.name": "",  # or the listener in the clear would be for brokers only
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{name}:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made.broker),
        f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms),
        f"{prefix}.plain.sasl.jaas.config": f"{PLAIN} {known};",
    }


def more_listeners(ports: Mapping[str, Mapping[int, int]]) -> OwnProperties:
    """`own_properties` of a cluster whose brokers have further listeners on 127.0.0.1. `ports`: listener -> broker -> its port."""

    def listeners(broker: int, directory: Path) -> dict[str, str]:
        given = (directory / "server.properties").read_text()
        (line,) = [line for line in given.splitlines() if line.startswith("listeners=")]
        more = [f"{name}://127.0.0.1:{of_brokers[broker]}" for name, of_brokers in ports.items()]
        return {"listeners": ",".join([line.partition("=")[2], *more])}

    return listeners
