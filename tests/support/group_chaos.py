"""Seeded chaos for consumer groups: coordinators, leaders and members die, stop and stand still (CLI-2, LAI-5, INV-23, INV-24, BUG-25).

    python -m tests.support.group_chaos --seed 7 --rounds 30 --directory DIR

As `tests.support.chaos`, whose faults it uses too. Two groups, one eager and one cooperative, read what an idempotent producer writes
and commit it all the time. Members are processes (`group_chaos_member`); what must be true of their journals and of the log of the
groups is in `group_journals`. After each fault every broker is asked for the groups' offsets: whoever answers must have what was
acknowledged before.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.groups.offsets_topic.ownership import partition_for
from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import OFFSETS_TOPIC
from tests.support import chaos
from tests.support.chaos import FEW_ACKS, STALLED_S, Faults, Round
from tests.support.group_journals import (
    Acknowledged,
    assert_commits_are_in_the_log,
    assert_nothing_again,
    assert_one_owner,
    processed_places,
    read_group_logs,
)
from tests.support.group_probe import CoordinatorProbe
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.load import BackgroundProducer, assert_once_and_in_order, read_everything
from tests.support.member_processes import MemberProcess, MemberProcesses
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

OFFSETS_PARTITIONS = 4
SETTINGS = {
    **chaos.SETTINGS,
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.topic.replication.factor": "3",
    "group.min.session.timeout.ms": "1000",
}
BROKERS = chaos.BROKERS
TOPIC, PARTITIONS = "group-chaos", 6
GROUPS = {
    "eager": ("range", "range", "range"),
    "cooperative": ("cooperative-sticky", "cooperative-sticky", "cooperative-sticky"),
}
"""Group -> the assignors of its members. The second is of impatient clients (`TUNED`), the first leaves all at librdkafka's defaults."""
TUNED = "cooperative"
PROBE = "probe"
RECORDS_PER_S = 400
ANSWER_TIMEOUT_S = 1.0
MEMBER_SESSION_S = 4.0

WEIGHTS = {
    "kill the coordinator": 6,
    "bounce the coordinator": 3,
    "stop the coordinator": 3,
    "pause the coordinator briefly": 3,
    "pause the coordinator beyond the session": 2,
    "kill a member": 3,
    "close a member": 2,
    "pause a member briefly": 2,
    "pause a member beyond its session": 2,
    "bounce": 2,
    "pause briefly": 1,
    "stop and start": 1,
    "kill the controller": 2,
    "restart two": 2,
    "restart all": 1,
}
"""As in `chaos`; those from "bounce" on are from there."""


class GroupFaults(Faults):
    """Those of `chaos`, and those of groups. The order of the victims says which group, and which of its members.

    `harmed`: the member that was the last victim. `struck`: the groups that the last fault was for.
    """

    def __init__(self, cluster: LocalCluster, zk: ZooKeeperView, groups: Mapping[str, MemberProcesses]) -> None:
        super().__init__(cluster, zk)
        self.groups = groups
        self.harmed: MemberProcess | None = None
        self.struck: frozenset[str] = frozenset()

    def inject(self, fault: Round) -> None:
        self.harmed = None
        first, second, *_ = fault.victims
        members = list(self.groups.values())[first % len(self.groups)]
        member = members.running[second % len(members.running)]
        coordinators = {group: self.coordinator(group) for group in self.groups}
        broker = coordinators[members.group] or first
        of_coordinators = fault.kind.partition(" the coordinator")[1]
        self.struck = frozenset(g for g, at in coordinators.items() if at == broker or not of_coordinators)
        long = 1.3 * chaos.SESSION_S + fault.share
        actions: dict[str, Callable[[], None]] = {
            "kill the coordinator": lambda: self._kill([broker], 0.5 + fault.share),
            "bounce the coordinator": lambda: self._kill([broker], 0.0),
            "stop the coordinator": lambda: self._stop(broker, fault.share),
            "pause the coordinator briefly": lambda: self._pause(broker, 0.6 * chaos.SESSION_S * fault.share),
            "pause the coordinator beyond the session": lambda: self._pause(broker, long),
            "kill a member": lambda: self._harm(member, members, MemberProcess.kill),
            "close a member": lambda: self._harm(member, members, MemberProcess.close),
            "pause a member briefly": lambda: self._pause_member(member, 0.6 * MEMBER_SESSION_S * fault.share),
            "pause a member beyond its session": lambda: self._pause_member(
                member, 1.3 * MEMBER_SESSION_S + fault.share
            ),
        }
        if fault.kind in actions:
            actions[fault.kind]()
        else:
            super().inject(fault)

    def coordinator(self, group: str) -> int | None:
        leader = self.zk.state(OFFSETS_TOPIC, partition_for(group, OFFSETS_PARTITIONS)).leader
        return leader if leader >= 0 else None

    def _harm(self, member: MemberProcess, members: MemberProcesses, end: Callable[[MemberProcess], None]) -> None:
        """It ends, and another one comes in its place at once."""
        self.harmed = member
        end(member)
        members.replace(member)

    def _pause_member(self, member: MemberProcess, seconds: float) -> None:
        self.harmed = member
        member.pause()
        try:
            time.sleep(seconds)
        finally:
            member.resume()


@dataclass
class Outcome:
    """For printing. `gaps`: kind of fault, group or PROBE -> the longest times without a commit, in seconds, of each member that was
    not harmed itself, in faults that found and left the groups quiet; PROBE: of a client that only commits, and asks often."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    commits: int = 0
    generations: int = 0
    again: int = 0
    gaps: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        rows = [
            f"  {kind:<42}" + ", ".join(f"{of} {_median_and_longest(self.gaps[kind, of])}" for of in (*GROUPS, PROBE))
            for kind in WEIGHTS
            if self.gaps[kind, PROBE]
        ]
        return (
            f"seed {self.seed}: {self.kinds.total()} rounds in {self.seconds:.0f} s ({kinds}); {self.acknowledged} records "
            f"acknowledged, each processed by {len(GROUPS)} groups, {self.again} again after a fault; {self.commits} commits "
            f"acknowledged in {self.generations} generations: lost 0, back 0, partitions with two owners 0; "
            "longest time without a commit (median, longest; s):\n" + "\n".join(rows)
        )


def _median_and_longest(times: Sequence[float]) -> str:
    return f"{statistics.median(times):5.2f} {max(times):5.2f} ({len(times)})" if times else "    -     -"


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Sequence[str] = tuple(WEIGHTS)) -> Outcome:
    """Makes the topic on a running cluster, then `rounds` faults. Raises AssertionError, ClusterError."""
    print(f"group chaos: seed {seed}, {rounds} rounds", flush=True)
    began = time.monotonic()
    outcome = Outcome(seed)
    with ExitStack() as stack:
        zk = ZooKeeperView(cluster.zookeeper_connect)
        stack.callback(zk.close)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        producer = stack.enter_context(chaos.producer_of(cluster, TOPIC, PARTITIONS, RECORDS_PER_S))
        groups = {
            name: stack.enter_context(MemberProcesses(cluster, name, TOPIC, assignors, is_tuned=name == TUNED))
            for name, assignors in GROUPS.items()
        }
        world = _World(cluster, zk, producer, groups)
        world.wait_quiet()
        probes = {
            group: stack.enter_context(CoordinatorProbe(cluster, group, OFFSETS_PARTITIONS, TOPIC)) for group in GROUPS
        }
        _inject_all(world, probes, chaos.schedule(seed, rounds, cluster.broker_ids, kinds, WEIGHTS), outcome)
        cluster.wait_ready()
        producer.wait_for_acks(FEW_ACKS, STALLED_S)
        world.wait_quiet()
        acknowledged = producer.stop()
        chaos.assert_none_failed(producer)
        latest = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        ends = {at.partition: future.result(30).offset for at, future in admin.list_offsets(latest).items()}
        eventually(lambda: world.has_no_lag(ends), "no lag", STALLED_S)
        world.assert_offsets(must_answer=True)
        for probe in probes.values():
            probe.stop()
        for members in groups.values():
            members.close()
        _assert_right(world, outcome)
    outcome.acknowledged = len(acknowledged.positions)
    outcome.seconds = time.monotonic() - began
    return outcome


def _inject_all(
    world: _World, probes: Mapping[str, CoordinatorProbe], faults: Sequence[Round], outcome: Outcome
) -> None:
    injector = GroupFaults(world.cluster, world.zk, world.groups)
    was_quiet = True
    for fault in faults:
        print(f"{time.strftime('%T')} {fault}", flush=True)
        begun = time.monotonic()
        living = {group: list(members.running) for group, members in world.groups.items()}
        injector.inject(fault)
        outcome.kinds[fault.kind] += 1
        chaos.assert_all_run(world.cluster)
        world.assert_offsets(must_answer=fault.then != "nothing")
        if fault.then != "nothing":
            world.wait_quiet()
            if was_quiet:
                _measure(outcome, fault.kind, begun, living, injector, probes)
        was_quiet = fault.then != "nothing"
        chaos.assert_none_failed(world.producer)


def _measure(
    outcome: Outcome,
    kind: str,
    begun: float,
    living: Mapping[str, Sequence[MemberProcess]],
    faults: GroupFaults,
    probes: Mapping[str, CoordinatorProbe],
) -> None:
    for group in sorted(faults.struck):
        probe = probes[group]
        eventually(lambda p=probe: p.has_committed(), f"{probe.group} commits", STALLED_S)
        now = time.monotonic()
        gaps = [member.longest_gap(begun, now) for member in living[group] if member is not faults.harmed]
        outcome.gaps[kind, group] += [gap for gap in gaps if gap]
        probed = probe.longest_gap(begun, now)
        outcome.gaps[kind, PROBE].append(probed)
        print(
            f"    {group}: without a commit {', '.join(f'{gap:.2f}' for gap in gaps)} s; {PROBE} {probed:.2f} s",
            flush=True,
        )


class _World:
    """All that runs, and what can be asked of it at any time."""

    def __init__(
        self,
        cluster: LocalCluster,
        zk: ZooKeeperView,
        producer: BackgroundProducer,
        groups: Mapping[str, MemberProcesses],
    ) -> None:
        self.cluster, self.zk, self.producer, self.groups = cluster, zk, producer, groups
        self._acknowledged = {group: Acknowledged() for group in groups}

    def wait_quiet(self) -> None:
        """Records acknowledged, the groups Stable with all members, all of these commit, and all replicas are in sync."""
        self.producer.wait_for_acks(FEW_ACKS, STALLED_S)
        for members in self.groups.values():
            eventually(lambda m=members: self.is_stable(m), f"{members.group} is Stable and commits", STALLED_S)

        def is_healed() -> bool:
            states = [state for topic in (TOPIC, OFFSETS_TOPIC) for state in self.zk.states(topic).values()]
            return all(len(state.isr) == 3 and state.leader >= 0 for state in states)

        eventually(is_healed, "full ISRs", STALLED_S)

    def is_stable(self, members: MemberProcesses) -> bool:
        since = time.monotonic() - 0.5
        if any(member.last_commit() < since for member in members.running):
            return False
        body = {"groups": [members.group], "include_authorized_operations": False}
        for answer in self._ask_all(ApiKey.DESCRIBE_GROUPS, 5, body).values():
            (group,) = answer.groups
            if not group.error_code and group.group_state == "Stable":
                return len(group.members) == len(members.running)
        return False

    def has_no_lag(self, ends: Mapping[int, int]) -> bool:
        return all(self._committed(group) == [ends] for group in self.groups)

    def assert_offsets(self, *, must_answer: bool) -> None:
        """INV-23, from whichever broker says that it is the coordinator."""
        for group, members in self.groups.items():
            floor = self._acknowledged[group].read(member.journal for member in members.all)
            answers = self._committed(group)
            if must_answer and not answers:
                answers = eventually(lambda g=group: self._committed(g), f"a coordinator of {group} answers", STALLED_S)
            for offsets in answers:
                lost = {p: (at, offsets.get(p)) for p, at in floor.items() if offsets.get(p, -1) < at}
                assert not lost, f"{group}: acknowledged and answered: {lost}"

    def _committed(self, group: str) -> list[dict[int, int]]:
        """Partition -> offset, of every broker that answers without an error."""
        body = {"groups": [{"group_id": group, "topics": None}], "require_stable": False}
        found = []
        for answer in self._ask_all(ApiKey.OFFSET_FETCH, 8, body).values():
            (row,) = answer.groups
            if not row.error_code:
                partitions = [
                    partition for topic in row.topics if topic.name == TOPIC for partition in topic.partitions
                ]
                assert not any(partition.error_code for partition in partitions), partitions
                found.append({int(p.partition_index): int(p.committed_offset) for p in partitions})
        return found

    def _ask_all(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> dict[int, Any]:
        answers = {}
        for broker in self.cluster.broker_ids:
            try:
                with Wire(self.cluster.port(broker), timeout_s=ANSWER_TIMEOUT_S) as wire:
                    answers[broker] = wire.call(api_key, version, body)
            except OSError:
                continue  # it is starting
        return answers


def _assert_right(world: _World, outcome: Outcome) -> None:
    cluster, zk, producer = world.cluster, world.zk, world.producer
    assert_healed(cluster, zk, TOPIC)
    assert_healed(cluster, zk, OFFSETS_TOPIC)
    records = read_everything(cluster.bootstrap_servers, TOPIC, PARTITIONS)
    assert_once_and_in_order(producer.acknowledged, records)
    written = {(record.partition(), record.offset()) for record in records}
    replicas = [
        replica_directory(cluster, state.leader, OFFSETS_TOPIC, partition)
        for partition, state in zk.states(OFFSETS_TOPIC).items()
    ]
    logs = read_group_logs(replicas, TOPIC)
    for group, members in world.groups.items():
        journals = [member.journal for member in members.all]
        for journal in journals:
            journal.read()
        skipped = written - processed_places(journals)
        assert not skipped, f"{group}: {len(skipped)} records were never processed: {sorted(skipped)[:5]}"
        outcome.commits += assert_commits_are_in_the_log(logs[group], journals)
        outcome.generations += assert_one_owner(logs[group], journals)
        outcome.again += assert_nothing_again(journals)


def _run_on(cluster: LocalCluster, seed: int, rounds: int, kinds: list[str]) -> None:
    outcome = run(cluster, seed, rounds, kinds)
    said = chaos.tracebacks(cluster)
    assert not said, said
    print(outcome)


if __name__ == "__main__":
    sys.exit(chaos.command("group_chaos", __doc__, WEIGHTS, SETTINGS, _run_on))
