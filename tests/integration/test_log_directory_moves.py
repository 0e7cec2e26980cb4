"""Replicas moved between log directories by `ottla reassign`, by Kafka's own tool, and through a killed broker (LOG-6, KIP-113)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("moves"))
    try:
        running.create(brokers=3)
        for broker in running.broker_ids:
            file = running.broker_directory(broker) / "server.properties"
            lines = [line for line in file.read_text().splitlines() if not line.startswith("log.dirs=")]
            paths = ",".join(map(str, disks(running, broker)))
            file.write_text("\n".join([*lines, f"log.dirs={paths}", ""]))
        running.start()
        yield running
    finally:
        running.destroy()


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return Cli(cluster.bootstrap_servers, list(cluster.broker_ids))


def disks(cluster: LocalCluster, broker: int) -> list[Path]:
    return [cluster.broker_directory(broker) / name for name in ("disk-a", "disk-b")]


def make_topic(cluster: LocalCluster, replication_factor: int = 3) -> str:
    name = f"moves-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, replication_factor)]).values():
        future.result(30)
    return name


def places(cluster: LocalCluster, broker: int, topic: str) -> dict[int, list[tuple[str, bool, int]]]:
    """partition -> (directory, is it a copy, its lag), as DescribeLogDirs answers."""
    found: dict[int, list[tuple[str, bool, int]]] = {}
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    for row in answer.results:
        for described in row.topics:
            if described.name == topic:
                for p in described.partitions:
                    found.setdefault(p.partition_index, []).append((row.log_dir, p.is_future_key, p.offset_lag))
    return found


def where(cluster: LocalCluster, broker: int, topic: str, partition: int) -> str:
    (place,) = [path for path, is_copy, _ in places(cluster, broker, topic)[partition] if not is_copy]
    return place


def other(cluster: LocalCluster, broker: int, directory: str) -> str:
    (found,) = [str(path) for path in disks(cluster, broker) if str(path) != directory]
    return found


def alter(
    cluster: LocalCluster, broker: int, directory: str, topic: str, partition: int, version: int = 2
) -> ErrorCode:
    body = {"dirs": [{"path": directory, "topics": [{"name": topic, "partitions": [partition]}]}]}
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, body)
    ((row,),) = [topic.partitions for topic in answer.results]
    return ErrorCode(row.error_code)


def test_ottla_reassign_moves_all_replicas_under_load(cluster: LocalCluster, cli: Cli, tmp_path: Path) -> None:
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 500) as producer:
        producer.wait_for_acks(2000)
        replicas = assignment_of(cluster, topic)
        rows = []
        for partition in range(PARTITIONS):
            targets = [other(cluster, b, where(cluster, b, topic, partition)) for b in replicas[partition]]
            row = {"topic": topic, "partition": partition, "replicas": replicas[partition], "log_dirs": targets}
            rows.append(row)
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        said = cli.output("reassign", "execute", "--reassignment-json-file", str(plan), "--watch")
        assert "Successfully started log directory moves for: " in said
        assert said.count("completed successfully.") == 3 * PARTITIONS
        said = cli.output("reassign", "verify", "--reassignment-json-file", str(plan))
        assert said.count("completed successfully.") == 3 * PARTITIONS
        producer.wait_for_acks(500)
        acknowledged = producer.stop()
    assert acknowledged.failed == []
    for row in rows:
        for broker, target in zip(row["replicas"], row["log_dirs"], strict=True):  # type: ignore[arg-type]
            assert places(cluster, broker, topic)[row["partition"]] == [(target, False, 0)]  # type: ignore[index]
    assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))


def assignment_of(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    view = ZooKeeperView(cluster.zookeeper_connect)
    try:
        return {number: list(assigned.replicas) for number, assigned in view.assignment(topic).items()}
    finally:
        view.close()


def test_a_replica_that_is_made_by_a_reassignment_is_made_where_it_is_wanted(
    cluster: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    """The tool asks before the reassignment, and the broker remembers."""
    topic = make_topic(cluster, replication_factor=1)
    (start,) = assignment_of(cluster, topic)[0]
    target = next(broker for broker in cluster.broker_ids if broker != start)
    for number, wanted in enumerate(disks(cluster, target)):
        row = {"topic": topic, "partition": 0, "replicas": [target], "log_dirs": [str(wanted)]}
        plan = tmp_path / f"plan-{number}.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        cli.output("reassign", "execute", "--reassignment-json-file", str(plan), "--watch")
        assert where(cluster, target, topic, 0) == str(wanted)


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_refused(cluster: LocalCluster, version: int) -> None:
    topic = make_topic(cluster)
    first = str(disks(cluster, 1)[0])
    assert alter(cluster, 1, "/nowhere", topic, 0, version) is ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(cluster, 1, first, "not-there", 0, version) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert alter(cluster, 1, where(cluster, 1, topic, 0), topic, 0, version) is ErrorCode.NONE


def test_a_throttled_move_is_shown_survives_a_kill_and_goes_on(cluster: LocalCluster) -> None:
    """`is_future_key` with its lag; the copy is still there after SIGKILL, and ends once the throttle is gone."""
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 1000) as producer:
        producer.wait_for_acks(3000)
        acknowledged = producer.stop()
    broker = 2
    source = where(cluster, broker, topic, 0)
    target = other(cluster, broker, source)
    throttle(cluster, broker, "1000")
    assert alter(cluster, broker, target, topic, 0) is ErrorCode.NONE
    copies = [place for place in places(cluster, broker, topic)[0] if place[1]]
    assert [(path, is_copy) for path, is_copy, _ in copies] == [(target, True)]
    eventually(lambda: any(c[1] and c[2] > 0 for c in places(cluster, broker, topic)[0]), "a lag")
    cluster.kill(broker)
    assert [path.name for path in Path(target).glob(f"{topic}-0.*-future")]
    cluster.start_broker(broker)
    cluster.wait_ready()
    throttle(cluster, broker, None)
    eventually(lambda: places(cluster, broker, topic).get(0) == [(target, False, 0)], "it has moved")
    eventually(lambda: not list(Path(source).glob(f"{topic}-0*")), "nothing left behind")
    assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))


def throttle(cluster: LocalCluster, broker: int, rate: str | None) -> None:
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    operation = AlterConfigOpType.SET if rate is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(key, rate, incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def test_ottla_reassign_throttles_the_moves_and_verify_removes_it(
    cluster: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    """`--replica-alter-log-dirs-throttle`: so slow that the copy is seen; raised by a second execute, as with Kafka's tool."""
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 5000) as producer:
        producer.wait_for_acks(1000)
        producer.stop()
    replicas = assignment_of(cluster, topic)[0]
    broker = replicas[0]
    target = other(cluster, broker, where(cluster, broker, topic, 0))
    directories = [target, *["any"] * (len(replicas) - 1)]
    row = {"topic": topic, "partition": 0, "replicas": replicas, "log_dirs": directories}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    execute = ("reassign", "execute", "--reassignment-json-file", str(plan), "--replica-alter-log-dirs-throttle")
    verify = ("reassign", "verify", "--reassignment-json-file", str(plan))
    shown = ("config", "describe", "--entity-type", "brokers", "--entity-name", str(broker))
    assert "The replica-alter-dir throttle limit was set to 1 B/s" in cli.output(*execute, "1")
    assert "still in progress" in cli.output(*verify)
    assert "replica.alter.log.dirs.io.max.bytes.per.second=1" in cli.output(*shown)
    cli.output(*execute, "1000000000")
    eventually(lambda: "completed successfully" in cli.output(*verify), "it has moved")
    assert "replica.alter.log.dirs.io.max.bytes.per.second" not in cli.output(*shown)
    assert places(cluster, broker, topic)[0] == [(target, False, 0)]


def test_kafkas_own_tool_moves_a_replica(cluster: LocalCluster, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    """kafka-reassign-partitions with log_dirs, against ottla's brokers."""
    topic = make_topic(cluster)
    replicas = assignment_of(cluster, topic)[0]
    targets = [other(cluster, broker, where(cluster, broker, topic, 0)) for broker in replicas]
    row = {"topic": topic, "partition": 0, "replicas": replicas, "log_dirs": targets}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    kafka_tools.reassign(cluster.bootstrap_servers, "--execute", "--reassignment-json-file", str(plan))
    for broker, target in zip(replicas, targets, strict=True):
        eventually(
            lambda b=broker, t=target: places(cluster, b, topic)[0] == [(t, False, 0)], f"replica {broker} has moved"
        )
    said = kafka_tools.reassign(cluster.bootstrap_servers, "--verify", "--reassignment-json-file", str(plan))
    assert said.count("completed successfully") == len(replicas), said
