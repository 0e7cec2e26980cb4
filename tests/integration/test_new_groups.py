"""Groups of the new kind (KIP-848) with librdkafka: what happens to topics, subscriptions, members and their processes (INV-23, INV-24)."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from protocol.topic_names import OFFSETS_TOPIC
from tests.conftest import CALM, ClusterFactory
from tests.support.cli import COMMAND, Cli
from tests.support.group_chaos_member import NEW_KIND
from tests.support.group_journals import (
    assert_commits_are_in_the_log,
    assert_nothing_again,
    assert_one_owner,
    read_group_logs,
)
from tests.support.group_members import CLIENTS, NEW, Client, Member, commit_from_outside, new_consumer
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.member_processes import MemberProcess, MemberProcesses
from tests.support.real_kafka import skip_without_kafka
from tests.support.topics import create_topics, fill
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

SESSION_S = 4.0
SETTINGS = {
    "broker.api.level": "4",
    "group.consumer.session.timeout.ms": str(round(1000 * SESSION_S)),
    "group.consumer.heartbeat.interval.ms": "300",
    "offsets.topic.num.partitions": "3",
}
PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))
POLL_S = 0.1
GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides=SETTINGS | CALM)


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return topic_of(cluster)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def topic_of(cluster: LocalCluster, partitions: int = PARTITIONS, name: str | None = None) -> str:
    """A new topic, which every broker knows."""
    name = name or f"topic-{uuid.uuid4().hex[:8]}"
    create_topics(cluster.bootstrap_servers, NewTopic(name, partitions, 2))
    wait_known_everywhere(cluster, name, partitions)
    return name


class Subscriber:
    """A consumer that is polled in a thread. `owned`: topic -> its partitions. `errors`: what it was told, as text."""

    def __init__(self, cluster: LocalCluster, group: str, topics: Sequence[str], **settings: Any) -> None:
        self.owned: dict[str, set[int]] = {}
        self.errors: list[str] = []
        self._consumer = new_consumer(cluster.bootstrap_servers, group, **{"group.protocol": "consumer"}, **settings)
        self._wanted: list[str] | None = list(topics)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Empty: unsubscribes."""
        self._wanted = list(topics)

    def _run(self) -> None:
        while not self._stop.is_set():
            wanted, self._wanted = self._wanted, None
            if wanted:
                self._consumer.subscribe(wanted, on_assign=self._add, on_revoke=self._take, on_lost=self._take)
            elif wanted is not None:
                self._consumer.unsubscribe()
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is not None:
                self.errors.append(str(message.error()))
        self._consumer.close()

    def _add(self, _: Consumer, partitions: Sequence[Any]) -> None:
        for at in partitions:
            self.owned.setdefault(at.topic, set()).add(at.partition)

    def _take(self, _: Consumer, partitions: Sequence[Any]) -> None:
        for at in partitions:
            self.owned[at.topic].discard(at.partition)
            if not self.owned[at.topic]:
                del self.owned[at.topic]


def are_split(members: Sequence[Member], partitions: frozenset[int] = ALL) -> bool:
    for member in members:
        member.check()
    owned = [partition for member in members for partition in member.owned]
    return sorted(owned) == sorted(partitions) and all(member.owned for member in members)


def test_partitions_are_added_and_the_topic_is_made_again(
    cluster: LocalCluster, admin: AdminClient, topic: str, group: str
) -> None:
    """Offsets of the topic that was deleted do not count for the new one."""
    with (
        Member(NEW, cluster.bootstrap_servers, group, topic) as one,
        Member(NEW, cluster.bootstrap_servers, group, topic) as two,
    ):
        eventually(lambda: are_split([one, two]), "each has a share")
        fill(cluster.bootstrap_servers, topic, [b"old"] * 40, PARTITIONS)
        eventually(lambda: len(one.seen) + len(two.seen) == 40, "all is read")
        for member in (one, two):
            member.commit()
        eventually(lambda: one.has_committed and two.has_committed, "all is committed")
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(30)
        eventually(lambda: are_split([one, two], frozenset(range(PARTITIONS + 2))), "the new partitions have owners")

        admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: not one.owned and not two.owned, "nobody owns what is gone")
        one.seen, two.seen = [], []
        topic_of(cluster, name=topic)
        eventually(lambda: are_split([one, two]), "the new topic has owners")
        fill(cluster.bootstrap_servers, topic, [b"new"] * 20, PARTITIONS)
        eventually(lambda: len(one.seen) + len(two.seen) == 20, "the new topic is read from its start")
        assert sorted(one.seen + two.seen) == sorted(
            (number % PARTITIONS, number // PARTITIONS) for number in range(20)
        )


def test_a_static_member_that_is_back_keeps_its_partitions(cluster: LocalCluster, topic: str, group: str) -> None:
    with Member(NEW, cluster.bootstrap_servers, group, topic, "two") as two:
        with Member(NEW, cluster.bootstrap_servers, group, topic, "one") as one:
            eventually(lambda: are_split([one, two]), "each has a share")
            before, other = one.owned, (two.owned, two.assignments)
        with Member(NEW, cluster.bootstrap_servers, group, topic, "one") as again:
            eventually(lambda: again.owned == before, "it has its partitions again")
            assert (two.owned, two.assignments) == other, "nobody else noticed"


@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_is_converted_while_it_has_members(
    cluster: LocalCluster, admin: AdminClient, topic: str, group: str, client: Client
) -> None:
    """To the new kind by the first member of the new protocol, and back when it is gone; in between, members of both share it."""

    def kind() -> ConsumerGroupType:
        (listed,) = (each for each in admin.list_consumer_groups().result(20).valid if each.group_id == group)
        return listed.type

    with Member(client, cluster.bootstrap_servers, group, topic) as classic:
        eventually(lambda: are_split([classic]), "the classic member has all partitions")
        assert kind() is ConsumerGroupType.CLASSIC
        with Member(NEW, cluster.bootstrap_servers, group, topic) as new:
            eventually(lambda: are_split([classic, new]), "each has a share")
            assert kind() is ConsumerGroupType.CONSUMER
            with Member(client, cluster.bootstrap_servers, group, topic) as second:
                eventually(lambda: are_split([classic, new, second]), "each of three has a share")
        eventually(lambda: are_split([classic]), "the classic member has all partitions again")
        assert kind() is ConsumerGroupType.CLASSIC


def test_of_two_with_one_instance_id_the_second_is_refused(cluster: LocalCluster, topic: str, group: str) -> None:
    with Subscriber(cluster, group, [topic], **{"group.instance.id": "one"}) as first:
        eventually(lambda: first.owned == {topic: set(ALL)}, "the first has all partitions")
        with Subscriber(cluster, group, [topic], **{"group.instance.id": "one"}) as second:
            eventually(lambda: second.errors, "the second is refused")
            assert "The instance ID is still used by another member" in second.errors[0]
            assert (first.owned, first.errors, second.owned) == ({topic: set(ALL)}, [], {})


def test_subscriptions_change_one_member_after_the_other(cluster: LocalCluster, topic: str, group: str) -> None:
    other = topic_of(cluster)
    whole = set(ALL)
    with Subscriber(cluster, group, [topic]) as one, Subscriber(cluster, group, [topic]) as two:

        def of(name: str) -> list[int]:
            return sorted([*one.owned.get(name, ()), *two.owned.get(name, ())])

        eventually(lambda: of(topic) == sorted(ALL) and one.owned and two.owned, "each has a share")
        one.subscribe([topic, other])
        eventually(lambda: of(topic) == of(other) == sorted(ALL), "both topics have owners")
        two.subscribe([other])
        eventually(
            lambda: one.owned.get(topic) == whole and of(other) == sorted(ALL), "the first has all of the first topic"
        )
        one.subscribe([other])
        eventually(lambda: not of(topic) and of(other) == sorted(ALL) and one.owned, "nobody reads the first topic")
        two.subscribe([])
        eventually(lambda: one.owned == {other: whole} and not two.owned, "the one that is left has all")
        two.subscribe([topic])
        eventually(lambda: two.owned == {topic: whole}, "it is back")


def test_a_regular_expression_finds_topics_that_come_later(cluster: LocalCluster, group: str) -> None:
    word = f"later{uuid.uuid4().hex[:6]}"
    first = topic_of(cluster, name=f"{word}-1")
    with Subscriber(cluster, group, [f"^{word}-[0-9]+$"]) as one:
        eventually(lambda: one.owned == {first: set(ALL)}, "the topic that is there")
        topic_of(cluster, name=f"{word}-x")
        second = topic_of(cluster, 2, name=f"{word}-2")
        eventually(lambda: one.owned == {first: set(ALL), second: {0, 1}}, "the topic that came later")


def test_a_member_that_is_fenced_joins_again(cluster: LocalCluster, topic: str, group: str) -> None:
    """By faults in its requests: a wrong epoch, and heartbeats that are lost on their way."""
    with Member(NEW, cluster.bootstrap_servers, group, topic) as member:
        eventually(lambda: member.owned == ALL, "it has all partitions")
        before = member.assignments
        fault = [*COMMAND, "fault", "answer", "consumer-group-heartbeat", "of", "group", group]
        place = ["--dir", str(cluster.directory)]
        subprocess.run([*fault, "with", "FENCED_MEMBER_EPOCH", "once", *place], check=True, timeout=60)
        eventually(lambda: member.assignments > before and member.owned == ALL, "it has joined again")
        subprocess.run([*fault, "with", "COORDINATOR_LOAD_IN_PROGRESS", "3", "times", *place], check=True, timeout=60)
        fill(cluster.bootstrap_servers, topic, [b"value"] * PARTITIONS, PARTITIONS)
        eventually(lambda: len(member.seen) >= PARTITIONS, "it reads on")
        assert member.owned == ALL


@pytest.mark.thorough
def test_a_stopped_and_a_killed_member_lose_their_partitions(cluster: LocalCluster, topic: str, group: str) -> None:
    """The one that was stopped for longer than its session is fenced, comes back, and none of its commits takes the group back."""

    def owned(member: MemberProcess) -> set[int]:
        found: set[int] = set()
        member.journal.read()
        for line in member.journal.lines:
            if line["what"] == "assigned":
                found |= set(line["partitions"])
            elif line["what"] in ("revoked", "lost"):
                found -= set(line["partitions"])
        return found

    def have_all(members: Sequence[MemberProcess]) -> bool:
        shares = [owned(member) for member in members]
        return all(shares) and sorted(partition for share in shares for partition in share) == sorted(ALL)

    def is_committed(count: int) -> bool:
        """In each partition, by whoever has committed last."""
        ends: dict[int, int] = {}
        for member in members.all:
            for _, offsets in member.journal.commits():
                ends |= {partition: max(offset, ends.get(partition, 0)) for partition, offset in offsets.items()}
        return ends == dict.fromkeys(ALL, count)

    with MemberProcesses(cluster, group, topic, [NEW_KIND] * 3, is_tuned=True) as members:
        stopped, killed, other = members.running
        eventually(lambda: have_all(members.running), "each has a share")
        fill(cluster.bootstrap_servers, topic, [b"before"] * 4 * PARTITIONS, PARTITIONS)
        eventually(lambda: have_all(members.running) and is_committed(4), "all is committed")

        stopped.pause()
        try:
            eventually(lambda: have_all([killed, other]), "its partitions have other owners")
            fill(cluster.bootstrap_servers, topic, [b"meanwhile"] * 4 * PARTITIONS, PARTITIONS)
            eventually(lambda: have_all([killed, other]) and is_committed(8), "they commit")
        finally:
            stopped.resume()
        eventually(lambda: have_all(members.running), "it is back")
        assert "lost" in {line["what"] for line in stopped.journal.lines}

        killed.kill()
        members.running.remove(killed)
        eventually(lambda: have_all(members.running), "the partitions of the dead have other owners")
        fill(cluster.bootstrap_servers, topic, [b"after"] * 4 * PARTITIONS, PARTITIONS)
        eventually(lambda: have_all(members.running) and is_committed(12), "they commit")
        members.close()
        journals = [member.journal for member in members.all]

    (data,) = cluster.log_directories(1)
    log = read_group_logs(sorted(data.glob(f"{OFFSETS_TOPIC}-*")), topic)[group]
    assert_commits_are_in_the_log(log, journals)
    assert_one_owner(log, journals)
    assert_nothing_again(journals)


@pytest.mark.thorough
def test_the_commands_know_groups_of_both_kinds(cluster: LocalCluster, topic: str, group: str) -> None:
    cli = Cli(cluster.bootstrap_servers, list(cluster.broker_ids))
    fill(cluster.bootstrap_servers, topic, [b"value"] * PARTITIONS, PARTITIONS)
    classic = f"{group}-classic"
    commit_from_outside(cluster.bootstrap_servers, classic, topic, {0: 1})
    with Member(NEW, cluster.bootstrap_servers, group, topic) as member:
        eventually(lambda: member.owned == ALL and len(member.seen) == PARTITIONS, "it has read all")
        member.commit()
        eventually(lambda: member.has_committed, "it has committed")
        listed = {row["group"]: (row["type"], row["state"]) for row in cli.json("group", "list")}
        assert (listed[group], listed[classic]) == (("Consumer", "Stable"), ("Classic", "Empty"))
        assert [row["group"] for row in cli.json("group", "list", "--type", "consumer", "--state", "stable")] == [group]
        (described,) = cli.json("group", "describe", group)
        assert (described["type"], described["state"], described["epoch"]) == ("Consumer", "Stable", 1)
        (seen,) = described["members"]
        assert (seen["epoch"], seen["assignment"], seen["target"]) == (1, {topic: sorted(ALL)}, {topic: sorted(ALL)})
        assert [row["lag"] for row in described["offsets"]] == [0] * PARTITIONS
        refused = cli.failure("group", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
        assert f"group '{group}' is inactive, but the current state is Stable" in refused
        assert "stop its consumers first" in cli.failure("group", "delete", group)
    done = cli.json("group", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")
    assert [row["new_offset"] for row in done["offsets"]] == [0] * PARTITIONS
    cli.output("group", "delete", group)
    assert group not in cli.output("group", "list").split()


@pytest.mark.thorough
@pytest.mark.kafka
def test_kafkas_command_knows_it(cluster: LocalCluster, topic: str, group: str) -> None:
    """kafka-consumer-groups of Kafka 4."""
    jars = skip_without_kafka(kraft=True)

    def groups(*arguments: str) -> list[list[str]]:
        command = jars.command(GROUPS_TOOL, "--bootstrap-server", cluster.bootstrap_servers, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [line.split() for line in done.stdout.splitlines() if line.strip()]

    with Member(NEW, cluster.bootstrap_servers, group, topic) as member:
        eventually(lambda: member.owned == ALL, "it has all partitions")
        assert [group, "Consumer"] in groups("--list", "--type")
        header, row = groups("--describe", "--state", "--verbose", "--group", group)
        assert header[-4:] == ["STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
        assert row[-5:] == ["uniform", "Stable", "1", "1", "1"]
        header, row = groups("--describe", "--members", "--verbose", "--group", group)
        assert header[-4:] == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        assert row[-4:] == ["1", f"{topic}:0,1,2,3", "1", f"{topic}:0,1,2,3"]
    assert [group, "Consumer", "Empty"] in groups("--list", "--type", "consumer", "--state", "empty")
    reset = ("--reset-offsets", "--to-earliest", "--topic", f"{topic}:0", "--execute", "--group", group)
    assert groups(*reset)[-1][-3:] == [topic, "0", "0"]
    groups("--delete", "--group", group)
    assert [group] not in groups("--list")
