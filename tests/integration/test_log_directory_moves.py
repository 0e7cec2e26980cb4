"""Replicas moved between log directories by `ottla reassign`, by Kafka's own tool, and through a killed broker (LOG-6, KIP-113)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import ResourceType

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.cli import Cli
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.topics import new_topic, set_configs
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 2
DISKS = ("disk-a", "disk-b")
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
FILE = "--reassignment-json-file"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    """Three brokers with two log directories each."""
    return new_module_cluster(
        brokers=3, own_properties=lambda _, home: {"log.dirs": f"{home / DISKS[0]},{home / DISKS[1]}"}
    )


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return cli_of(cluster)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3)
    for broker in cluster.broker_ids:
        eventually(lambda b=broker: len(places(cluster, b, topic)) == PARTITIONS, f"broker {broker} has its logs")
    return topic


def disks(cluster: LocalCluster, broker: int) -> list[str]:
    return [str(cluster.broker_directory(broker) / name) for name in DISKS]


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


def other(cluster: LocalCluster, broker: int, topic: str, partition: int = 0) -> str:
    """The directory of the broker that does not have the replica."""
    (found,) = set(disks(cluster, broker)) - {where(cluster, broker, topic, partition)}
    return found


def plan_file(tmp_path: Path, topic: str, *rows: tuple[Sequence[int], Sequence[str]]) -> str:
    """A reassignment file with the replicas of each partition, in order, and their directories."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": directories}
        for number, (replicas, directories) in enumerate(rows)
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(plan)


def alter(
    cluster: LocalCluster, broker: int, directory: str, topic: str, partition: int, version: int = 2
) -> ErrorCode:
    body = {"dirs": [{"path": directory, "topics": [{"name": topic, "partitions": [partition]}]}]}
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, body)
    ((row,),) = [topic.partitions for topic in answer.results]
    return ErrorCode(row.error_code)


def test_ottla_reassign_moves_all_replicas_under_load(
    cluster: LocalCluster, zk: ZooKeeperView, cli: Cli, topic: str, tmp_path: Path
) -> None:
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 500) as producer:
        producer.wait_for_acks(2000)
        rows = [
            (assigned.replicas, [other(cluster, broker, topic, partition) for broker in assigned.replicas])
            for partition, assigned in sorted(zk.assignment(topic).items())
        ]
        plan = plan_file(tmp_path, topic, *rows)
        said = cli.output("reassign", "execute", FILE, plan, "--watch")
        assert "Successfully started log directory moves for: " in said
        assert said.count("completed successfully.") == 3 * PARTITIONS
        said = cli.output("reassign", "verify", FILE, plan)
        assert said.count("completed successfully.") == 3 * PARTITIONS
        producer.wait_for_acks(500)
    for partition, (replicas, targets) in enumerate(rows):
        for broker, target in zip(replicas, targets, strict=True):
            assert places(cluster, broker, topic)[partition] == [(target, False, 0)]
    assert_all_read_back(producer)


def test_a_reassignment_creates_a_replica_in_the_chosen_directory(
    cluster: LocalCluster, zk: ZooKeeperView, cli: Cli, tmp_path: Path
) -> None:
    """The tool sends AlterReplicaLogDirs first. The broker has no replica yet, so it remembers the directory for it."""
    topic = new_topic(cluster.bootstrap_servers)
    (start,) = zk.assignment(topic)[0].replicas
    target = next(broker for broker in cluster.broker_ids if broker != start)
    for wanted in disks(cluster, target):
        cli.output("reassign", "execute", FILE, plan_file(tmp_path, topic, ([target], [wanted])), "--watch")
        assert where(cluster, target, topic, 0) == wanted


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_targets_are_refused_and_the_present_directory_is_not(
    cluster: LocalCluster, topic: str, version: int
) -> None:
    first = disks(cluster, 1)[0]
    assert alter(cluster, 1, "/nowhere", topic, 0, version) is ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(cluster, 1, first, "not-there", 0, version) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert alter(cluster, 1, where(cluster, 1, topic, 0), topic, 0, version) is ErrorCode.NONE


@pytest.mark.thorough
def test_a_throttled_move_is_shown_and_continues_after_a_kill(cluster: LocalCluster, topic: str) -> None:
    """`is_future_key` with its lag; the copy is still there after SIGKILL, and ends once nothing throttles it."""
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 1000) as producer:
        producer.wait_for_acks(3000)
    broker = 2
    source, target = where(cluster, broker, topic, 0), other(cluster, broker, topic)
    set_configs(cluster.bootstrap_servers, ResourceType.BROKER, str(broker), {THROTTLE: "1000"})
    assert alter(cluster, broker, target, topic, 0) is ErrorCode.NONE
    copies = [(path, is_copy) for path, is_copy, _ in places(cluster, broker, topic)[0] if is_copy]
    assert copies == [(target, True)]
    eventually(lambda: any(c[1] and c[2] > 0 for c in places(cluster, broker, topic)[0]), "a lag")
    cluster.kill(broker)
    assert [path.name for path in Path(target).glob(f"{topic}-0.*-future")]
    cluster.start_broker(broker)
    cluster.wait_ready()
    set_configs(cluster.bootstrap_servers, ResourceType.BROKER, str(broker), {THROTTLE: None})
    eventually(lambda: places(cluster, broker, topic).get(0) == [(target, False, 0)], "it has moved")
    eventually(lambda: not list(Path(source).glob(f"{topic}-0*")), "nothing left behind")
    assert_all_read_back(producer)


def test_ottla_reassign_throttles_the_moves_and_verify_removes_it(
    cluster: LocalCluster, zk: ZooKeeperView, cli: Cli, topic: str, tmp_path: Path
) -> None:
    """The throttle is so low that the copy is seen; a second `execute` raises it, as with Kafka's tool."""
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, b"x" * 5000) as producer:
        producer.wait_for_acks(1000)
    replicas = zk.assignment(topic)[0].replicas
    target = other(cluster, replicas[0], topic)
    plan = plan_file(tmp_path, topic, (replicas, [target, "any", "any"]))
    execute = ("reassign", "execute", FILE, plan, "--replica-alter-log-dirs-throttle")
    verify = ("reassign", "verify", FILE, plan)
    shown = ("config", "describe", "--entity-type", "brokers", "--entity-name", str(replicas[0]))
    assert "The replica-alter-dir throttle limit was set to 1 B/s" in cli.output(*execute, "1")
    assert "still in progress" in cli.output(*verify)
    assert f"{THROTTLE}=1" in cli.output(*shown)
    cli.output(*execute, "1000000000")
    eventually(lambda: "completed successfully" in cli.output(*verify), "it has moved")
    assert THROTTLE not in cli.output(*shown)
    assert places(cluster, replicas[0], topic)[0] == [(target, False, 0)]


def test_kafkas_own_tool_moves_a_replica(
    cluster: LocalCluster, zk: ZooKeeperView, kafka_tools: KafkaTools, topic: str, tmp_path: Path
) -> None:
    """kafka-reassign-partitions with log_dirs, against ottla's brokers."""
    replicas = zk.assignment(topic)[0].replicas
    targets = [other(cluster, broker, topic) for broker in replicas]
    plan = plan_file(tmp_path, topic, (replicas, targets))
    kafka_tools.reassign(cluster.bootstrap_servers, "--execute", FILE, plan)
    for broker, target in zip(replicas, targets, strict=True):
        moved = [(target, False, 0)]
        eventually(lambda b=broker, m=moved: places(cluster, b, topic)[0] == m, f"replica {broker} has moved")
    said = kafka_tools.reassign(cluster.bootstrap_servers, "--verify", FILE, plan)
    assert said.count("completed successfully") == len(replicas), said
