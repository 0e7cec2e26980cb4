"""Seeded chaos for consumer groups: coordinators, leaders and members die, stop and stand still (CLI-2, LAI-5, INV-23, INV-24, BUG-25).

    python -m tests.support.group_chaos --seed 7 --rounds 30 --directory DIR

As `tests.support.chaos`, whose faults it uses too. Three groups, an eager one, a cooperative one, and one of the new kind (KIP-848), read
what an idempotent producer writes and commit it all the time. Members are processes (`group_chaos_member`); what must be true of their
journals and of the log of the groups is in `group_journals`. After each fault every broker is asked for the groups' offsets: whoever
answers must have what was acknowledged before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import OFFSETS_TOPIC
from tests.support import chaos
from tests.support.background_load import Ids, assert_clean, client_of
from tests.support.chaos import STALLED_S
from tests.support.group_chaos_member import HEARTBEAT_MS, NEW_KIND, SESSION_MS
from tests.support.group_journals import (
    Acknowledged,
    assert_commits_are_in_the_log,
    assert_nothing_again,
    assert_one_owner,
    read_group_logs,
    reports_of,
)
from tests.support.injected import healed, inject
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.member_processes import MemberProcesses
from tools.cluster.local_cluster import LocalCluster
from tools.faults.cluster import Victim
from tools.faults.processes import Broker, ProcessCluster
from tools.faults.roles import Roles
from tools.faults.schedule import Kind, Round, process_kinds, schedule
from tools.judge.reports import LEFT, Report
from tools.judge.verdict import MEMBER
from tools.wire.client import ask

OFFSETS_PARTITIONS = 4
SETTINGS = {
    **chaos.SETTINGS,
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.topic.replication.factor": "3",
    "group.min.session.timeout.ms": "1000",
    "broker.api.level": "4",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}
TOPIC, PARTITIONS = "group-chaos", 6
GROUPS = {"eager": ["range"] * 3, "cooperative": ["cooperative-sticky"] * 3, "new": [NEW_KIND] * 3}
"""Group -> the assignors of its members. The second is of impatient clients (`TUNED`), the first leaves all at librdkafka's defaults."""
TUNED = "cooperative"
RECORDS_PER_S = 400
ANSWER_TIMEOUT_S = 1.0
MEMBER_SESSION_S = SESSION_MS / 1000
PROCESS_KINDS = process_kinds(chaos.SESSION_S)

KINDS = {
    "kill the coordinator": Kind("kill", "coordinator", 0.5, 1.5, weight=6),
    "bounce the coordinator": Kind("kill", "coordinator", weight=3),
    "stop the coordinator": Kind("stop", "coordinator", 0, 1, weight=3),
    "pause the coordinator briefly": Kind("pause", "coordinator", 0, 0.6 * chaos.SESSION_S, weight=3),
    "pause the coordinator beyond the session": Kind("pause", "coordinator", *chaos.BEYOND_S, weight=2),
    "kill a member": Kind("kill", "member", weight=3),
    "close a member": Kind("stop", "member", weight=2),
    "pause a member briefly": Kind("pause", "member", 0, 0.6 * MEMBER_SESSION_S, weight=2),
    "pause a member beyond its session": Kind(
        "pause", "member", 1.3 * MEMBER_SESSION_S, 1.3 * MEMBER_SESSION_S + 1, weight=2
    ),
    "bounce": replace(PROCESS_KINDS["bounce"], weight=2),
    "pause briefly": replace(PROCESS_KINDS["pause briefly"], weight=1),
    "stop and start": replace(PROCESS_KINDS["stop and start"], weight=1),
    "kill the controller": replace(PROCESS_KINDS["kill the controller"], weight=2),
    "restart two": PROCESS_KINDS["restart two"],
    "restart all": PROCESS_KINDS["restart all"],
}


@dataclass
class Outcome(chaos.Outcome):
    generations: int = 0

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.generations} generations"


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Mapping[str, Kind] = KINDS) -> Outcome:
    """Makes the topic on a running cluster, then `rounds` faults. Raises AssertionError, ClusterError, TimeoutError."""
    print(f"group chaos: seed {seed}, {rounds} rounds", flush=True)
    outcome = Outcome(seed)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
    with healed(ProcessCluster(cluster)), ExitStack() as stack:
        world = _World(cluster, stack)
        world.wait_quiet()
        for fault in schedule(seed, rounds, cluster.broker_ids, kinds):
            print(f"{time.strftime('%T')} {fault}", flush=True)
            outcome.kinds[fault.name] += 1
            world.play(fault)
        cluster.wait_ready()
        world.wait_quiet()
        world.producer.stop()
        latest = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        ends = {at.partition: future.result(30).offset for at, future in admin.list_offsets(latest).items()}
        eventually(lambda: all(world.committed(group) == [ends] for group in GROUPS), "no lag", STALLED_S)
        world.assert_offsets(must_answer=True)
        world.close()
        _judge(world, outcome)
    chaos.assert_no_tracebacks(cluster)
    outcome.seconds = world.log.now()
    return outcome


class _World:
    """All that runs, and what can be asked of it at any time."""

    def __init__(self, cluster: LocalCluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.log = chaos.FaultLog()
        self.roles = Roles(ProcessCluster(cluster))
        self.producer = stack.enter_context(
            chaos.producer_of(cluster, TOPIC, PARTITIONS, RECORDS_PER_S, self.log.began)
        )
        self.groups = {
            name: stack.enter_context(MemberProcesses(cluster, name, TOPIC, assignors, is_tuned=name == TUNED))
            for name, assignors in GROUPS.items()
        }
        self.gone: list[Report] = []
        """Members that were killed, or stopped for longer than their session."""
        self._acknowledged = {group: Acknowledged() for group in GROUPS}

    def close(self) -> None:
        for members in self.groups.values():
            members.close()

    def play(self, fault: Round) -> None:
        """The order of the brokers says which group is harmed, and which member."""
        first, second, *_ = fault.order
        members = list(self.groups.values())[first % len(self.groups)]
        member = members.running[second % len(members.running)]
        brokers: Sequence[int] = []
        if fault.kind.role == "member":
            self.log.add_now(fault.kind.action, f"{MEMBER}{member.name}")
        elif fault.kind.role == "coordinator":
            brokers = [self.roles.coordinator(members.group) or first]
        else:
            brokers = self.roles.some(fault.kind.role, fault.order)
        for each in brokers:
            self.log.add_now(fault.kind.action, fault.kind.role, each)
        if not brokers and (fault.kind.action == "kill" or fault.seconds > MEMBER_SESSION_S):
            self.gone.append(Report(LEFT, group=members.group, member=member.name, at=self.log.now()))
        victims: list[Victim] = [Broker(self.cluster, each) for each in brokers] or [member]
        inject(fault.kind.action, victims, fault.seconds)
        chaos.assert_all_run(self.cluster)
        self.assert_offsets(must_answer=fault.then != "nothing")
        if fault.then != "nothing":
            self.wait_quiet()
        chaos.assert_none_failed(self.producer)

    def wait_quiet(self) -> None:
        """Records acknowledged, the groups Stable with all members, all of these commit, and all replicas are in sync."""
        chaos.wait_for_acks([self.producer])
        for members in self.groups.values():
            eventually(lambda m=members: self._is_stable(m), f"{members.group} is Stable and commits", STALLED_S)
        chaos.wait_in_sync(self.roles, [TOPIC, OFFSETS_TOPIC])

    def _is_stable(self, members: MemberProcesses) -> bool:
        since = time.monotonic() - 0.5
        if any(member.last_commit() < since for member in members.running):
            return False
        is_new = members.assignors == {NEW_KIND}
        names = {"group_ids" if is_new else "groups": [members.group], "include_authorized_operations": False}
        api, version = (ApiKey.CONSUMER_GROUP_DESCRIBE, 1) if is_new else (ApiKey.DESCRIBE_GROUPS, 5)
        for answer in self._ask_all(api, version, names):
            (group,) = answer.groups
            if not group.error_code and group.group_state == "Stable":
                return len(group.members) == len(members.running)
        return False

    def assert_offsets(self, *, must_answer: bool) -> None:
        """INV-23, from whichever broker says that it is the coordinator."""
        for group, members in self.groups.items():
            floor = self._acknowledged[group].read(member.journal for member in members.all)
            answers = self.committed(group)
            if must_answer and not answers:
                answers = eventually(lambda g=group: self.committed(g), f"a coordinator of {group} answers", STALLED_S)
            for offsets in answers:
                lost = {p: (at, offsets.get(p)) for p, at in floor.items() if offsets.get(p, -1) < at}
                assert not lost, f"{group}: acknowledged and answered: {lost}"

    def committed(self, group: str) -> list[dict[int, int]]:
        """Partition -> offset, of every broker that answers without an error."""
        body = {"groups": [{"group_id": group, "topics": None}], "require_stable": False}
        found = []
        for answer in self._ask_all(ApiKey.OFFSET_FETCH, 8, body):
            (row,) = answer.groups
            if not row.error_code:
                partitions = [
                    partition for topic in row.topics if topic.name == TOPIC for partition in topic.partitions
                ]
                assert not any(partition.error_code for partition in partitions), partitions
                found.append({int(p.partition_index): int(p.committed_offset) for p in partitions})
        return found

    def _ask_all(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> list[Any]:
        """The answers of those that are not just starting."""
        addresses = [("127.0.0.1", self.cluster.port(broker)) for broker in self.cluster.broker_ids]
        answers = [ask(address, ANSWER_TIMEOUT_S, api_key, version, body) for address in addresses]
        return [answer for answer in answers if answer is not None]


def _judge(world: _World, outcome: Outcome) -> None:
    """Into the outcome. Raises AssertionError."""
    cluster, producer, log = world.cluster, world.producer, world.log
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        assert_healed(cluster, zk, TOPIC)
        assert_healed(cluster, zk, OFFSETS_TOPIC)
        replicas = [
            replica_directory(cluster, state.leader, OFFSETS_TOPIC, partition)
            for partition, state in zk.states(OFFSETS_TOPIC).items()
        ]
    logs = read_group_logs(replicas, TOPIC)
    journals = {group: [member.journal for member in members.all] for group, members in world.groups.items()}
    for group, of_group in journals.items():
        for journal in of_group:
            journal.read()
        assert_commits_are_in_the_log(logs[group], of_group)
        assert_nothing_again(of_group)
        assert_one_owner(logs[group], of_group)
        outcome.generations += logs[group].generation

    def read(ids: Ids) -> list[Report]:
        reports = [report for group in journals for report in reports_of(journals[group], group, TOPIC, ids, log.began)]
        return sorted((*reports, *world.gone), key=lambda report: report.at)

    client, _ = client_of(producer, log.now(), read, is_finished=True)
    outcome.verdict = assert_clean([client], log.faults, end=log.now())


if __name__ == "__main__":
    chaos.main("group_chaos", __doc__, KINDS, SETTINGS, run)
