"""Kafka's own TopicCommand, ConfigCommand, LeaderElectionCommand and ReassignPartitionsCommand work against the cluster (CLI-3, CTL-9..12).

What is expected is what the same commands print against a real Kafka 3.9.1.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, assert_known_alike, eventually, replica_directory
from tests.support.kafka_tools import KafkaTools
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


@pytest.fixture(scope="module")
def cluster(kafka_tools: KafkaTools, new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def created(
    kafka_tools: KafkaTools, cluster: LocalCluster, zk: ZooKeeperView, name: str, assignment: str, **configs: str
) -> str:
    """Makes a topic with replicas such as `1:2,2:3`; all brokers know it when this returns."""
    topic = unique(name)
    servers = cluster.bootstrap_servers
    settings = [word for key, value in configs.items() for word in ("--config", f"{key.replace('_', '.')}={value}")]
    printed = kafka_tools.topics(servers, "--create", "--topic", topic, "--replica-assignment", assignment, *settings)
    assert printed == f"Created topic {topic}.\n"
    assert_known_alike(cluster, zk, topic)
    return topic


def configs_when(
    kafka_tools: KafkaTools, servers: str, entity: Sequence[str], part: str, *, is_shown: bool = True
) -> str:
    """The output of ConfigCommand once the broker that it asks knows the change."""

    def described() -> str | None:
        text = kafka_tools.configs(servers, "--describe", *entity)
        return text if (part in text) == is_shown else None

    return str(eventually(described, f"{part} described: {is_shown}"))


def test_configs_are_altered_and_described(cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView) -> None:
    servers = cluster.bootstrap_servers
    topic = created(kafka_tools, cluster, zk, "configured", "1:2", retention_ms="100000")
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    values = "max.message.bytes=70000,cleanup.policy=[compact,delete]"
    assert (
        kafka_tools.configs(servers, "--alter", *of_topic, "--add-config", values)
        == f"Completed updating config for topic {topic}.\n"
    )
    assert configs_when(kafka_tools, servers, of_topic, "max.message.bytes").splitlines() == [
        f"Dynamic configs for topic {topic} are:",
        (
            "  cleanup.policy=compact,delete sensitive=false "
            "synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}"
        ),
        (
            "  max.message.bytes=70000 sensitive=false "
            "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=70000, DEFAULT_CONFIG:message.max.bytes=1048588}"
        ),
        "  retention.ms=100000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=100000}",
    ]
    bad = kafka_tools.configs(
        servers, "--alter", *of_topic, "--add-config", "max.message.bytes=abc", expected_exit_code=1
    )
    assert "InvalidConfigurationException" in bad
    kafka_tools.configs(servers, "--alter", *of_topic, "--delete-config", "max.message.bytes,cleanup.policy")
    assert "cleanup.policy" not in configs_when(kafka_tools, servers, of_topic, "max.message.bytes", is_shown=False)


def test_elections(cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView) -> None:
    servers = cluster.bootstrap_servers
    topic = created(kafka_tools, cluster, zk, "elected", "1:2")
    partition = ["--topic", topic, "--partition", "0"]
    needless = kafka_tools.elections(servers, "--election-type", "preferred", *partition)
    assert needless.strip() == f"Valid replica already elected for partitions {topic}-0"
    cluster.stop_broker(1)
    eventually(lambda: zk.state(topic, 0).leader == 2, "broker 2 leads")
    cluster.start_broker(1)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    done = kafka_tools.elections(servers, "--election-type", "preferred", *partition)
    assert done.strip() == f"Successfully completed leader election (PREFERRED) for partitions {topic}-0"
    assert zk.state(topic, 0).leader == 1


def test_an_unclean_election_only_where_nobody_else_can_lead(
    cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView
) -> None:
    topic = created(kafka_tools, cluster, zk, "unclean", "1:2")
    partition = ["--topic", topic, "--partition", "0"]
    cluster.stop_broker(2)
    eventually(lambda: zk.state(topic, 0).isr == (1,), "broker 2 has left the ISR")
    cluster.stop_broker(1)
    cluster.start_broker(2)
    eventually(lambda: zk.state(topic, 0).leader == -1 and 2 in zk.live_brokers(), "no leader: broker 2 may not")
    eventually(lambda: 2 not in cluster.problems(), "broker 2 answers")
    address = f"127.0.0.1:{cluster.port(2)}"
    done = kafka_tools.elections(address, "--election-type", "unclean", *partition)
    assert done.strip() == f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0"
    assert (zk.state(topic, 0).leader, zk.state(topic, 0).isr) == (2, (2,))
    cluster.start_broker(1)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)


def test_reassignment(cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView, tmp_path: Path) -> None:
    """generate, execute with a throttle, list, verify, cancel; under load, with the leader among those that move."""
    servers = cluster.bootstrap_servers
    topic = created(kafka_tools, cluster, zk, "moved", "1:2,2:1", min_insync_replicas="1")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    proposed = kafka_tools.reassign(
        servers, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
    )
    current, proposal = (json.loads(line) for line in proposed.splitlines() if line.startswith("{"))
    assert [(p["partition"], p["replicas"]) for p in current["partitions"]] == [(0, [1, 2]), (1, [2, 1])]
    assert len(proposal["partitions"]) == 2

    plan = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [3, 2]}, {"topic": topic, "partition": 1, "replicas": [2, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    rollback = tmp_path / "rollback.json"
    rollback.write_text(json.dumps(current))
    of_plan = ["--reassignment-json-file", str(plan)]
    # Records of 2 KB: the first fetch, which no throttle holds up, is far from all.
    with BackgroundProducer(servers, topic, 2, bytes(2000)) as producer:
        producer.wait_for_acks(500)
        started = kafka_tools.reassign(servers, "--execute", *of_plan, "--throttle", "10000000")
        assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in started
        assert "The inter-broker throttle limit was set to 10000000 B/s" in started
        eventually(lambda: all(not a.adding and not a.removing for a in zk.assignment(topic).values()), "moved")
        producer.wait_for_acks(500)
        assert_known_alike(cluster, zk, topic)
        verified = kafka_tools.reassign(servers, "--verify", *of_plan)
        assert f"Reassignment of partition {topic}-0 is completed." in verified
        assert "Clearing broker-level throttles on brokers 1,2,3" in verified
        configs_when(
            kafka_tools, servers, ["--entity-type", "topics", "--entity-name", topic], "throttled", is_shown=False
        )
        assert "No partition reassignments found." in kafka_tools.reassign(servers, "--list")
        assert {p: a.replicas for p, a in zk.assignment(topic).items()} == {0: (3, 2), 1: (2, 3)}

        # More is produced than may be copied, so the way back stays under way.
        kafka_tools.reassign(servers, "--execute", "--reassignment-json-file", str(rollback), "--throttle", "100")
        listed = kafka_tools.reassign(servers, "--list")
        assert f"{topic}-0: replicas: 1,2,3. adding: 1. removing: 3." in listed
        cancelled = kafka_tools.reassign(servers, "--cancel", "--reassignment-json-file", str(rollback))
        assert f"Successfully cancelled partition reassignments for: {topic}-0,{topic}-1" in cancelled
        producer.wait_for_acks(500)
    assert_healed(cluster, zk, topic)
    assert {p: set(a.replicas) for p, a in zk.assignment(topic).items()} == {0: {2, 3}, 1: {2, 3}}
    assert_all_read_back(producer)
    eventually(
        lambda: not any(replica_directory(cluster, 1, topic, p).exists() for p in (0, 1)),
        "broker 1 keeps nothing of it",
    )


def test_the_java_producer_is_idempotent_by_default(
    cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView
) -> None:
    """LOG-5: ProducerPerformance sets nothing but acks; KIP-664: TransactionsCommand finds it."""
    servers = cluster.bootstrap_servers
    topic = created(kafka_tools, cluster, zk, "java-producer", "1:2:3")
    # fmt: off
    printed = kafka_tools.run("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "3000",
                        "--record-size", "100", "--throughput", "-1", "--producer-props", f"bootstrap.servers={servers}",
                        "acks=all", "batch.size=1000")
    assert "3000 records sent" in printed
    printed = kafka_tools.run("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", servers, "describe-producers",
                        "--topic", topic, "--partition", "0")
    # fmt: on
    heading, row = (line.split() for line in printed.splitlines())
    assert heading[:3] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"]
    assert row[1:4] == ["0", "-1", "2999"]
    # Broker 2 follows: it is asked about all of its partitions, and has no transaction that hangs.
    hanging = ("find-hanging", "--broker-id", "2", "--max-transaction-timeout", "1")
    printed = kafka_tools.run("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", servers, *hanging)
    assert [line.split()[:2] for line in printed.splitlines()] == [["Topic", "Partition"]]


def test_offsets_deleted_records_and_log_directories(
    cluster: LocalCluster, kafka_tools: KafkaTools, zk: ZooKeeperView, tmp_path: Path
) -> None:
    """GetOffsetShell, DeleteRecordsCommand and LogDirsCommand."""
    servers = cluster.bootstrap_servers
    topic = created(kafka_tools, cluster, zk, "looked-at", "1:2,2:3", retention_ms="-1")
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(10):
        producer.produce(topic, f"value {number}", partition=0, timestamp=1000 * (20 - number if number else 99))
    assert producer.flush(30) == 0

    def offsets(time: str) -> str:
        tool = "org.apache.kafka.tools.GetOffsetShell"
        return kafka_tools.run(tool, "--bootstrap-server", servers, "--topic", topic, "--time", time)

    assert offsets("latest") == f"{topic}:0:10\n{topic}:1:0\n"
    for time in ("max-timestamp", "99000"):
        assert offsets(time) == f"{topic}:0:0\n", "the tool leaves out a partition without such a record"
    assert offsets("99001") == ""

    asked = tmp_path / "delete.json"
    asked.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}))
    deleting = ("org.apache.kafka.tools.DeleteRecordsCommand", "--bootstrap-server", servers)
    printed = kafka_tools.run(*deleting, "--offset-json-file", str(asked)).splitlines()
    assert printed[-1] == f"partition: {topic}-0\tlow_watermark: 4"
    assert offsets("earliest") == f"{topic}:0:4\n{topic}:1:0\n"

    looking = ("org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", servers)
    printed = kafka_tools.run(*looking, "--describe", "--topic-list", topic).splitlines()
    assert printed[-2] == "Received log directory information from brokers 1,2,3"
    found = {
        (broker["broker"], replica["partition"])
        for broker in json.loads(printed[-1])["brokers"]
        for directory in broker["logDirs"]
        for replica in directory["partitions"]
        if directory["logDir"] == str(cluster.log_directories(broker["broker"])[0]) and not replica["isFuture"]
    }
    assert found == {(1, f"{topic}-0"), (2, f"{topic}-0"), (2, f"{topic}-1"), (3, f"{topic}-1")}
