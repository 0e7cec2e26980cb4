"""One broker's directory and configuration, on which ottla and a real Kafka run in turn."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.invariants import ZooKeeperView, eventually
from tests.support.kafka_tools import TOOL_TIMEOUT_S, KafkaTools
from tests.support.real_kafka import java_command
from tests.support.secure_zookeeper import SecureZooKeeper
from tools.cluster.local_cluster import LocalCluster

Kind = Literal["ottla", "Kafka"]
KAFKA_START_TIMEOUT_S = 60.0
BROKER = 1
FEW_PARTITIONS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
"""Of the internal topics: they are made, and recovered, in no time."""


class SwappableBroker:
    """One broker's directory and configuration, with its ZooKeeper; ottla or a real Kafka runs on them in turn.

    `start(kind)` and `stop(signal)` alternate. Ids, ports and files stay the same.
    """

    def __init__(
        self,
        directory: Path,
        tools: KafkaTools,
        overrides: Mapping[str, str] | None = None,
        zookeeper: SecureZooKeeper | None = None,
    ) -> None:
        """`zookeeper`: instead of one of its own, whose port has no TLS. `overrides` say how to reach it."""
        self.cluster = LocalCluster(directory)
        self.tools = tools
        self._secure = zookeeper
        self._overrides = {**FEW_PARTITIONS, **(overrides or {})}
        self._kafka: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SwappableBroker:
        secure = self._secure
        self.cluster.create(brokers=1, overrides=self._overrides, zookeeper=secure.connect if secure else None)
        self.cluster.start()
        self.cluster.stop_broker(BROKER)
        certificate, trusted = (secure.certificate("view"), secure.trusted) if secure else (None, None)
        self.zk = ZooKeeperView(self.cluster.zookeeper_connect, certificate, trusted)
        return self

    def __exit__(self, *_: object) -> None:
        if self._kafka is not None:
            self._kafka.kill()
            self._kafka.wait()
        with contextlib.suppress(AttributeError):
            self.zk.close()
        self.cluster.destroy()

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def data(self) -> Path:
        return self.cluster.broker_directory(BROKER) / "data"

    @property
    def kafka_log(self) -> Path:
        return self.cluster.broker_directory(BROKER) / "kafka.log"

    def start(self, kind: Kind, topics: Mapping[str, int] | None = None) -> None:
        """Returns when all partitions of `topics` (name -> how many) are led: the broker answers for each."""
        eventually(lambda: self.zk.live_brokers() == [], "the previous broker is gone from ZooKeeper")
        if kind == "Kafka":
            config = self.cluster.broker_directory(BROKER) / "server.properties"
            with self.kafka_log.open("ab") as log:
                self._kafka = subprocess.Popen(java_command("kafka.Kafka", str(config)), stdout=log, stderr=log)
        else:
            self.cluster.start_broker(BROKER)
            self.cluster.wait_ready()
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})

        def serves_or_ended() -> bool:
            assert self._kafka is None or self._kafka.poll() is None, self.kafka_log.read_text()[-3000:]
            return serves(admin, topics or {})

        eventually(serves_or_ended, f"{kind} serves", KAFKA_START_TIMEOUT_S)

    def stop(self, number: signal.Signals) -> None:
        """SIGTERM is a clean stop, SIGKILL is not."""
        if self._kafka is not None:
            self._kafka.send_signal(number)
            assert self._kafka.wait(TOOL_TIMEOUT_S) in (0, 128 + number, -number), self.kafka_log.read_text()[-3000:]
            self._kafka = None
        elif number == signal.SIGTERM:
            self.cluster.stop_broker(BROKER)
        else:
            self.cluster.kill(BROKER)

    def files(self, topic: str, suffix: str) -> Iterator[Path]:
        """The files with that suffix in the directories `<topic>-*`, sorted by directory, then by name."""
        for directory in sorted(self.data.glob(f"{topic}-*")):
            yield from sorted(directory.glob(f"*{suffix}"))


def serves(admin: AdminClient, topics: Mapping[str, int]) -> bool:
    """True when the leader of each partition answers. Metadata may name it before it has heard that it leads."""
    asked = {
        TopicPartition(name, number): OffsetSpec.latest() for name, count in topics.items() for number in range(count)
    }
    try:
        if not admin.list_topics(timeout=1).brokers:
            return False
        for answer in admin.list_offsets(asked, request_timeout=1).values() if asked else ():
            answer.result()
    except KafkaException:
        time.sleep(0.1)
        return False
    return True
