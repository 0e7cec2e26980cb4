"""`ottla group ...` while the group's coordinator is killed and started again: it may take longer, but the result is right (CLI-2)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.group_members import commit_from_outside
from tests.support.invariants import eventually
from tests.support.thorough import thorough
from tests.support.topics import fill
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GROUP = "readers"
TOPIC = "orders"
RECORDS = 20
COMMITTED = 7
ROUNDS = 3

ASKS_AGAIN_AND_AGAIN = f"""
import sys
from tools.groups.kafka_groups import KafkaGroups
groups = KafkaGroups(sys.argv[1])
while sys.stdin.readline():
    offsets = groups.committed_offsets(["{GROUP}"])["{GROUP}"]
    print(*(committed.offset for _, committed in sorted(offsets.items())), flush=True)
"""


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    """With a topic of two partitions with RECORDS records in each, of which GROUP has committed COMMITTED."""
    started = new_cluster(brokers=3, overrides={"offsets.topic.num.partitions": "5"})
    cli = cli_of(started)
    cli.output("topic", "create", TOPIC, "--partitions", "2", "--replication-factor", "3")
    fill(started.bootstrap_servers, TOPIC, ["v"] * RECORDS * 2, partitions=2)
    commit_from_outside(started.bootstrap_servers, GROUP, TOPIC, dict.fromkeys(range(2), COMMITTED))
    return started


def coordinator(cluster: LocalCluster) -> int:
    (described,) = cli_of(cluster).json("group", "describe", GROUP, "--state")
    return int(described["coordinator"])


def check_description(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    (described,) = json.loads(done.stdout)
    assert (described["group"], described["state"]) == (GROUP, "Empty")
    assert [row["current_offset"] for row in described["offsets"]] == [COMMITTED, COMMITTED]
    # A partition whose leader is just being replaced has no end that anybody could ask for.
    assert {row["lag"] for row in described["offsets"]} <= {RECORDS - COMMITTED, None}


def check_list(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert [found["group"] for found in json.loads(done.stdout)] == [GROUP]


def check_reset(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode == 1 and "has no leader" in done.stderr:
        return  # the broker led a partition of the topic, too: without its end no reset is safe
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert {row["new_offset"] for row in json.loads(done.stdout)["offsets"]} == {COMMITTED}


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (["describe", GROUP], check_description),
        thorough(["list"], check_list),
        thorough(["reset-offsets", GROUP, "--topic", TOPIC, "--to-offset", str(COMMITTED), "--execute"], check_reset),
    ],
    ids=["describe", "list", "reset-offsets"],
)
def test_while_the_coordinator_moves(
    cluster: LocalCluster, arguments: list[str], check: Callable[[subprocess.CompletedProcess[str]], None]
) -> None:
    """The coordinator, and then its successor, is killed and started again while commands run."""
    is_over = threading.Event()
    done: list[subprocess.CompletedProcess[str]] = []

    def ask_until_over() -> None:
        while not is_over.is_set():
            done.append(cli_of(cluster).run("group", *arguments, "--format", "json"))

    with ThreadPoolExecutor(1) as executor:
        asking = executor.submit(ask_until_over)
        try:
            for _ in range(ROUNDS):
                broker, before = coordinator(cluster), len(done)
                cluster.kill(broker)
                eventually(lambda gone=broker: coordinator(cluster) != gone, "another coordinator")
                cluster.start_broker(broker)
                cluster.wait_ready(60)
                eventually(lambda n=before: len(done) > n or asking.done(), "an answer of this round")
        finally:
            is_over.set()
    asking.result()
    for answered in done:
        check(answered)
    check_description(cli_of(cluster).run("group", "describe", GROUP, "--format", "json"))


def test_a_client_that_knew_another_coordinator(cluster: LocalCluster) -> None:
    """A live broker first answers NOT_COORDINATOR, which crashes librdkafka's own fetch of all offsets."""
    command = [sys.executable, "-c", ASKS_AGAIN_AND_AGAIN, cluster.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def check() -> None:
            print(file=client.stdin, flush=True)
            assert client.stdout.readline().split() == [str(COMMITTED)] * 2, client.poll()

        check()
        preferred = coordinator(cluster)
        cluster.kill(preferred)
        check()
        eventually(lambda: coordinator(cluster) != preferred, "another coordinator")
        cluster.start_broker(preferred)
        cluster.wait_ready(60)
        check()

        def is_back() -> bool:
            cli_of(cluster).run("elect", "--election-type", "preferred", "--all-topic-partitions")
            return coordinator(cluster) == preferred

        eventually(is_back, "the first coordinator")
        check()
        client.stdin.close()
        assert client.wait(30) == 0


@pytest.mark.thorough
def test_a_client_whose_broker_hangs(cluster: LocalCluster) -> None:
    """Another broker is asked instead."""
    client = KafkaAdmin(cluster.bootstrap_servers, connect_timeout_s=2)
    for broker in cluster.broker_ids:
        for _ in range(5):  # connects to several brokers
            client.cluster()
        cluster.pause(broker)
        for _ in range(3):
            assert TOPIC in client.cluster().topics
        assert client.cluster().nodes
        cluster.resume(broker)
