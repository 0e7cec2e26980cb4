"""`ottla topic alter|delete`, `config`, `reassign`, `elect`, `cluster status|health`, `inspect znodes`: against ottla, and the
same against a real Kafka, since they use nothing but the public API (CTL-8 to CTL-12). Their refusals: tests/unit/tools/admin.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.cli import OURS_AND_KAFKAS, Cli
from tests.support.invariants import eventually

pytestmark = pytest.mark.integration

RECORD_BYTES = 10_000
RECORDS = 600
SLOW, FASTER, FREE = "100000", "300000", "1000000000"
"""Bytes/s: about eleven seconds' worth goes through at once, so that with the first two 6 MB are not all copied for long."""


def new_topic(cli: Cli, *partitions: list[int]) -> str:
    """Creates a topic with the given replicas of each partition. Returns when all brokers serve it."""
    name = f"admin-{uuid.uuid4().hex[:8]}"
    assignment = ",".join(":".join(map(str, replicas)) for replicas in partitions)
    cli.output("topic", "create", name, "--replica-assignment", assignment)
    eventually(partial(serves, cli, name, len(partitions)), f"topic {name} served")
    return name


def serves(cli: Cli, topic: str, partitions: int) -> bool:
    """True when all brokers know that many led partitions, as ZooKeeper does."""
    if cli.run("inspect", "znodes", "--zookeeper", cli.zookeeper, "--topic", topic).returncode:
        return False
    views = partition_views(cli, topic)
    return len(views) == partitions and all(view["leader"] is not None for view in views)


def partition_views(cli: Cli, topic: str) -> list[dict[str, Any]]:
    (described,) = cli.json("topic", "describe", topic)
    views: list[dict[str, Any]] = described["partitions"]
    return views


def fill(cli: Cli, topic: str, partition: int) -> None:
    """6 MB that do not compress."""
    producer = Producer({"bootstrap.servers": cli.bootstrap_servers, "acks": "all", "linger.ms": 20})
    for _ in range(RECORDS):
        producer.produce(topic, uuid.uuid4().bytes * (RECORD_BYTES // 16), partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def plan(topic: str, *replicas: list[int]) -> str:
    rows = [{"topic": topic, "partition": number, "replicas": brokers} for number, brokers in enumerate(replicas)]
    return json.dumps({"version": 1, "partitions": rows})


@OURS_AND_KAFKAS
def test_topic_alter_and_delete(cli: Cli) -> None:
    first, second, third = cli.broker_ids
    name = new_topic(cli, [first, second])
    assert cli.output("topic", "alter", name, "--partitions", "2") == f"Altered topic {name}.\n"
    eventually(partial(serves, cli, name, 2), "the second partition")
    assignment = f"{first}:{second},{first}:{second},{third}:{first}"
    cli.output("topic", "alter", name, "--replica-assignment", assignment, "--config", "retention.ms=60000000")
    eventually(partial(serves, cli, name, 3), "the third partition")
    assert partition_views(cli, name)[2]["replicas"] == [third, first]
    (described,) = cli.json("topic", "describe", name)
    assert described["configs"]["retention.ms"] == "60000000"
    assert name in cli.output("topic", "describe", "--topics-with-overrides")

    assert "retention.ms" in cli.failure("topic", "alter", name, "--config", "retention.ms=soon")
    other = new_topic(cli, [first])
    assert cli.output("topic", "delete", name, other) == f"Deleted topic {name}.\nDeleted topic {other}.\n"
    eventually(lambda: not {name, other} & set(cli.output("topic", "list").splitlines()), "both topics gone")
    assert f"topic {name} does not exist" in cli.failure("topic", "delete", name)
    assert cli.json("topic", "delete", name, "--if-exists") == {"deleted": [], "missing": [name], "failures": []}


@OURS_AND_KAFKAS
def test_configs(cli: Cli) -> None:
    name = new_topic(cli, cli.broker_ids[:1])
    topic = ["--entity-type", "topics", "--entity-name", name]
    cli.output("config", "alter", *topic, "--add-config", "retention.ms=70000000,max.message.bytes=2000000")
    eventually(lambda: "retention.ms=70000000 " in cli.output("config", "describe", *topic), "the config is effective")
    (everything,) = cli.json("config", "describe", *topic, "--all")
    assert everything["configs"]["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert everything["configs"]["segment.bytes"]["source"] == "DEFAULT_CONFIG"
    cli.output("config", "alter", *topic, "--delete-config", "retention.ms")
    eventually(lambda: "retention.ms=" not in cli.output("config", "describe", *topic), "the config is gone")

    broker = ["--entity-type", "brokers", "--entity-name", str(cli.broker_ids[0])]
    everyone = ["--entity-type", "brokers", "--entity-default"]
    key = "leader.replication.throttled.rate"
    for entity, source in ((broker, "DYNAMIC_BROKER_CONFIG"), (everyone, "DYNAMIC_DEFAULT_BROKER_CONFIG")):
        cli.output("config", "alter", *entity, "--add-config", f"{key}=123456789")
        eventually(partial(has_config, cli, entity, key, source), f"{key} from {source}")
        cli.output("config", "alter", *entity, "--delete-config", key)
        eventually(lambda e=entity: key not in cli.output("config", "describe", *e), f"no {key}")
    assert "broker.id" in cli.failure("config", "alter", *broker, "--add-config", "broker.id=7")


@pytest.mark.parametrize(
    ("kind", "key", "value", "misspelt", "source"),
    [
        ("groups", "consumer.session.timeout.ms", "50000", "consumer.sesion.timeout.ms", "DYNAMIC_GROUP_CONFIG"),
        ("client-metrics", "match", "client_id=a,client_id=b", "macth", "DYNAMIC_CLIENT_METRICS_CONFIG"),
    ],
)
def test_configs_of_groups_and_client_metrics(
    cli: Cli, kind: str, key: str, value: str, misspelt: str, source: str
) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    entity = ["--entity-type", kind, "--entity-name", name]
    of_all = ["config", "describe", "--entity-type", kind]
    assert f"did you mean {key}?" in cli.failure("config", "alter", *entity, "--add-config", f"{misspelt}={value}")
    said = cli.output("config", "alter", *entity, "--add-config", f"{key}=[{value}]")
    assert said == f"Completed updating config for {kind.removesuffix('s')} {name}.\n"
    eventually(partial(has_config, cli, entity, key, source), f"{key} from {source}")
    eventually(lambda: name in cli.output(*of_all), "it is listed")
    cli.output("config", "alter", *entity, "--delete-config", key)
    eventually(lambda: name not in cli.output(*of_all), "it is gone")


def has_config(cli: Cli, entity: list[str], key: str, source: str) -> bool:
    (described,) = cli.json("config", "describe", *entity)
    return bool(described["configs"].get(key, {}).get("source") == source)


@OURS_AND_KAFKAS
def test_reassign_with_throttle_progress_cancel_and_verify(cli: Cli) -> None:
    first, second, third = cli.broker_ids
    name = new_topic(cli, [first], [second])
    fill(cli, name, 0)
    target = plan(name, [third], [second])
    file = ["--reassignment-json-file", "-"]

    said = cli.output("reassign", "execute", *file, "--throttle", SLOW, stdin=target)
    assert f"The inter-broker throttle limit was set to {SLOW} B/s" in said
    assert f"Successfully started partition reassignments for {name}-0\n" in said
    (row,) = cli.json("reassign", "list")
    assert (row["topic"], row["adding_replicas"], row["removing_replicas"]) == (name, [third], [first])
    assert row["bytes_moved"] < row["bytes_total"]
    assert row["bytes_total"] > RECORDS * RECORD_BYTES
    assert f"Adding Replicas: {third}\tRemoving Replicas: {first}" in cli.output("topic", "describe", name)
    assert "reassign" in cli.failure("topic", "alter", name, "--partitions", "3")
    assert "already being reassigned" in cli.failure("reassign", "execute", *file, stdin=target)
    status = cli.output("reassign", "verify", *file, stdin=target)
    assert f"Reassignment of partition {name}-0 is still in progress (" in status
    assert f"Reassignment of partition {name}-1 is completed." in status
    assert throttles(cli, name)

    cancelled = cli.output("reassign", "cancel", *file, stdin=target)
    assert f"Successfully cancelled partition reassignments for: {name}-0" in cancelled
    eventually(lambda: partition_views(cli, name)[0]["replicas"] == [first], "the old replicas")
    assert "do not have the replicas in the file" in cli.failure("reassign", "verify", *file, stdin=target)
    eventually(lambda: not throttles(cli, name), "no throttles")

    with watching(cli, target) as watch:
        told = read_until(watch, "0 of 1 partitions")
        alter_throttle(cli, FASTER, first, third)
        told += read_until(watch, " left")
        assert "%" in told.splitlines()[-1]
        alter_throttle(cli, FREE, first, third)
        rest, complaint = watch.communicate(timeout=60)
    watched = told + rest
    assert (watch.returncode, complaint) == (0, ""), watched
    assert f"Reassignment of partition {name}-0 is completed." in watched
    assert f"Clearing topic-level throttles on topics {name}" in watched
    eventually(lambda: not throttles(cli, name), "no throttles")
    assert partition_views(cli, name)[0]["replicas"] == [third]
    assert "nothing to move" in cli.failure("reassign", "execute", *file, stdin=target)


@contextlib.contextmanager
def watching(cli: Cli, target: str) -> Iterator[subprocess.Popen[str]]:
    """`reassign execute --watch`, slow until `alter_throttle`."""
    process = subprocess.Popen(
        cli.command("reassign", "execute", "--reassignment-json-file", "-", "--throttle", SLOW, "--watch"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(target)
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], part: str) -> str:
    """The output up to the line that contains `part`."""
    assert process.stdout is not None
    told = ""
    while line := process.stdout.readline():
        told += line
        if part in line:
            return told
    raise AssertionError(f"no {part!r} in {told}")


def alter_throttle(cli: Cli, rate: str, source: int, destination: int) -> None:
    for role, broker in (("leader", source), ("follower", destination)):
        entity = ["--entity-type", "brokers", "--entity-name", str(broker)]
        cli.output("config", "alter", *entity, "--add-config", f"{role}.replication.throttled.rate={rate}")


def throttles(cli: Cli, topic: str) -> bool:
    """Whether a throttle is set on the topic or any broker."""
    said = cli.output("config", "describe", "--entity-type", "topics", "--entity-name", topic)
    return "throttled" in said + cli.output("config", "describe", "--entity-type", "brokers")


@OURS_AND_KAFKAS
def test_elect_the_preferred_leader(cli: Cli) -> None:
    first, second, _ = cli.broker_ids
    name = new_topic(cli, [first, second])
    one = ["elect", "--election-type", "preferred", "--topic", name, "--partition", "0"]
    assert cli.output(*one) == f"Valid replica already elected for partitions {name}-0\n"
    # Another preferred replica, and the same leader until an election.
    cli.output("reassign", "execute", "--watch", "--reassignment-json-file", "-", stdin=plan(name, [second, first]))
    if partition_views(cli, name)[0]["leader"] == first:
        assert cli.output(*one) == f"Successfully completed leader election (PREFERRED) for partitions {name}-0\n"
    eventually(lambda: partition_views(cli, name)[0]["leader"] == second, "the preferred leader")
    cli.output("reassign", "execute", "--watch", "--reassignment-json-file", "-", stdin=plan(name, [first, second]))
    for kind in ("unclean", "preferred"):
        cli.output("elect", "--election-type", kind, "--all-topic-partitions")
    eventually(
        lambda: partition_views(cli, name)[0]["leader"] == first, "the preferred leader, elected with all others"
    )
    assert "does not exist" in cli.failure(*one[:-1], "7")


@OURS_AND_KAFKAS
def test_status_health_and_znodes(cli: Cli) -> None:
    name = new_topic(cli, cli.broker_ids)
    eventually(lambda: cli.run("cluster", "health").returncode == 0, "a healthy cluster")
    health = cli.json("cluster", "health")
    assert (health["healthy"], health["nodes"], health["nodes_down"]) == (True, cli.broker_ids, [])
    status = cli.json("cluster", "status")
    assert status["controller"] in cli.broker_ids
    assert [node["state"] for node in status["nodes"]] == ["running"] * 3
    assert (status["under_replicated_partitions"], status["offline_partitions"]) == (0, 0)
    compared = cli.json("inspect", "znodes", "--zookeeper", cli.zookeeper, "--topic", name)
    assert compared["differences"] == 0
    facts = {row["fact"]: row["zookeeper"] for row in compared["rows"] if row["subject"] == f"{name}-0"}
    assert facts == {
        "leader": str(cli.broker_ids[0]),
        "leader epoch": "0",
        "isr": ",".join(map(str, sorted(cli.broker_ids))),
        "replicas": ",".join(map(str, cli.broker_ids)),
    }
    assert "is the chroot right?" in cli.failure("inspect", "znodes", "--zookeeper", f"{cli.zookeeper}/elsewhere")


@pytest.mark.thorough
def test_with_a_dead_broker(new_cluster: ClusterFactory) -> None:
    """Elections without a live replica are refused, and a health check waits for the broker's return."""
    cluster = new_cluster(brokers=3)
    first, second, dead = cluster.broker_ids
    cli = cli_of(cluster)
    name, _, other = new_topic(cli, [dead]), new_topic(cli, [first, second, dead]), new_topic(cli, [first, second])
    cluster.kill(dead)

    def health() -> Any:
        return json.loads(cli.run("cluster", "health", "--format", "json").stdout)

    eventually(lambda: health()["nodes_down"] == [dead], "the dead node")
    assert cli.run("cluster", "health").returncode == 1
    assert health()["leaderless_partitions"] == [f"{name}-0"]
    assert "Leader: none" in cli.output("topic", "describe", name, "--unavailable-partitions")
    is_down = f"broker {dead} is down"
    execute = ["reassign", "execute", "--reassignment-json-file", "-"]
    # Metadata goes on listing a broker that died for three seconds (docs/FAST_FAILURE_DETECTION.md). Until then, the controller refuses.
    eventually(lambda: is_down in cli.failure(*execute, stdin=plan(other, [first, dead])), is_down)
    of_dead = ["--entity-type", "brokers", "--entity-name", str(dead)]
    assert f"broker {dead} is not live" in cli.failure("config", "alter", *of_dead, "--add-config", "a=b")
    for kind in ("unclean", "preferred"):
        refused = cli.failure("elect", "--election-type", kind, "--topic", name, "--partition", "0")
        assert f"no leader could be elected for 1 partitions: {name}-0" in refused

    wait = cli.command("cluster", "health", "--exit-when-healthy", "--timeout", "60")
    with subprocess.Popen(wait, stdout=subprocess.PIPE, text=True) as waiting:
        cluster.restart_broker(dead)
        told, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert [line.split()[-1] for line in told.splitlines() if line.startswith("Healthy:")][-1] == "true"


@pytest.mark.thorough
def test_watching_continues_with_the_next_controller(new_cluster: ClusterFactory) -> None:
    """CTL-10: the next controller resumes the move, and the watching command asks the next controller."""
    cluster = new_cluster(brokers=3)
    controller = cluster.controller_id()
    source, destination = (broker for broker in cluster.broker_ids if broker != controller)
    cli = cli_of(cluster)
    name = new_topic(cli, [source])
    fill(cli, name, 0)
    with watching(cli, plan(name, [destination])) as watch:
        read_until(watch, "0 of 1 partitions")
        cluster.kill(controller)
        eventually(lambda: cluster.controller_id() not in (-1, controller), "the next controller")
        alter_throttle(cli, FREE, source, destination)
        told, complaint = watch.communicate(timeout=60)
    assert watch.returncode == 0, (told, complaint)
    assert f"Reassignment of partition {name}-0 is completed." in told
    assert f"Clearing topic-level throttles on topics {name}" in told
