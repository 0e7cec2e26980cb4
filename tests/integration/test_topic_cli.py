"""`ottla topic create|list|describe` against ottla, and the same against a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.invariants import eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import free_ports, is_free

pytestmark = pytest.mark.integration


def first_of_free_ports(count: int) -> int:
    """The second of `count` + 1 free ports in a row: peer-kafka puts its ZooKeeper on the one before."""
    while True:
        (port,) = free_ports(1)
        if all(is_free("127.0.0.1", port + n) for n in range(count + 1)):
            return port + 1


class Cli:
    """`ottla topic ...` as a process of its own, against one cluster."""

    def __init__(self, bootstrap_servers: str, broker_ids: list[int]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.broker_ids = broker_ids

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from tools.cli import main; main()", "topic", *arguments]
        options = ["--bootstrap-server", self.bootstrap_servers]
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)

    def output(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def create(self, name: str, *arguments: str) -> str:
        """Creates the topic and waits until every broker knows it: they hear of it some milliseconds later."""
        said = self.output("create", name, *arguments)
        brokers = AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=20).brokers
        for broker in brokers.values():
            eventually(partial(knows, broker.port, name), f"topic {name} known to broker {broker.id}")
        return said

    def failure(self, *arguments: str) -> str:
        """The one line of a refusal."""
        done = self.run(*arguments)
        assert done.returncode == 1, done
        (line,) = done.stderr.splitlines()
        return line


def knows(port: int, topic: str) -> bool:
    """True when the broker there names a leader for every partition of the topic."""
    with Wire(port) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    (found,) = answer.topics
    return found.error_code == ErrorCode.NONE and all(p.leader_id >= 0 for p in found.partitions)


@pytest.fixture
def ottla(shared_cluster: LocalCluster) -> Cli:
    return Cli(shared_cluster.bootstrap_servers, list(shared_cluster.broker_ids))


@pytest.fixture(scope="module")
def kafka(peer_kafka: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    directory = tmp_path_factory.mktemp("peer-kafka")
    first_port = first_of_free_ports(3)
    command = ["env", "KAFKA_HEAP=-Xms256m -Xmx400m", "bash", str(peer_kafka)]
    try:
        # Its output would keep the pipe open as long as the brokers run: it goes to a file.
        with (directory / "up.log").open("w") as log:
            subprocess.run(
                [*command, "up", str(directory), "3", str(first_port)],
                stdout=log,
                stderr=log,
                timeout=170,
                check=True,
            )
        yield Cli(f"127.0.0.1:{first_port}", [0, 1, 2])
    finally:
        subprocess.run([*command, "down", str(directory)], timeout=60, check=False)


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.peer)])
def cli(request: pytest.FixtureRequest) -> Cli:
    found: Cli = request.getfixturevalue(request.param)
    return found


def new_name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


def test_create_list_describe(cli: Cli) -> None:
    name = new_name()
    created = cli.create(name, "--partitions", "4", "--replication-factor", "3", "--config", "retention.ms=60000")
    assert created == f"Created topic {name}.\n"

    assert name in cli.output("list").splitlines()
    (listed,) = json.loads(cli.output("list", "--topic", name, "--format", "json"))
    assert listed == {"topic": name, "partition_count": 4}

    header, *partitions = cli.output("describe", name).splitlines()
    assert header.startswith(f"Topic: {name}\tTopicId: ")
    assert "\tPartitionCount: 4\tReplicationFactor: 3\tConfigs: " in header
    assert [line.split("\t")[:3] for line in partitions] == [
        ["", f"Topic: {name}", f"Partition: {n}"] for n in range(4)
    ]

    (described,) = json.loads(cli.output("describe", "--topic", name, "--format", "json"))
    assert len(described["topic_id"]) == 22
    if described["configs"] is not None:  # None: this cluster does not serve DescribeConfigs
        assert described["configs"]["retention.ms"] == "60000"
    for partition in described["partitions"]:
        assert sorted(partition["replicas"]) == cli.broker_ids
        assert partition["leader"] == partition["replicas"][0]


def test_replica_assignment(cli: Cli) -> None:
    name = new_name()
    first, second, third = cli.broker_ids
    cli.create(name, "--replica-assignment", f"{second}:{first},{third}:{second}")
    (described,) = json.loads(cli.output("describe", name, "--format", "json"))
    assert [partition["replicas"] for partition in described["partitions"]] == [[second, first], [third, second]]


def test_defaults_and_if_not_exists(cli: Cli) -> None:
    name = new_name()
    cli.create(name)
    assert "exists already" in cli.failure("create", name)
    assert json.loads(cli.output("create", name, "--if-not-exists", "--format", "json")) == {
        "topic": name,
        "created": False,
    }


def nothing_is_printed(cli: Cli, name: str, option: str) -> bool:
    return cli.output("describe", name, option) == ""


def test_filters_of_a_healthy_topic(cli: Cli) -> None:
    name = new_name()
    cli.create(name, "--replication-factor", "3")
    for option in ("--under-replicated-partitions", "--unavailable-partitions"):
        eventually(partial(nothing_is_printed, cli, name, option), f"nothing for {option}")
        assert json.loads(cli.output("describe", name, option, "--format", "json")) == []
    under_min_isr = cli.run("describe", name, "--under-min-isr-partitions")
    if under_min_isr.returncode:
        assert "does not serve" in under_min_isr.stderr
    else:
        assert under_min_isr.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "cli-refused", "--replication-factor", "9"], "choose --replication-factor from 1 to 3"),
        (["create", "cli-refused", "--config", "no.such.config=1"], "no.such.config"),
        (["create", "cli-refused", "--config", "retention.ms=soon"], "retention.ms"),
        (["create", "cli refused"], "choose another name"),
        (["describe", "cli-unknown"], "does not exist"),
    ],
)
def test_refusals_are_one_line(cli: Cli, arguments: list[str], says: str) -> None:
    assert says in cli.failure(*arguments)
    assert "cli-refused" not in cli.output("list").splitlines()


def test_nothing_answers() -> None:
    line = Cli("127.0.0.1:1", []).failure("list")
    assert "no broker answers at 127.0.0.1:1" in line
