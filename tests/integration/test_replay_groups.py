"""A replayed consumer group is a real one: it assigns, commits, and goes on after its coordinator died; it skips no record (RPL-2)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from protocol.types import TopicPartition
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.small_traces import fetch, produce
from tests.support.topics import new_topic
from tools.admin.bootstrap import addresses_of
from tools.cluster.local_cluster import LocalCluster
from tools.group_protocols import CLASSIC, CONSUMER
from tools.groups.group_views import GroupView
from tools.groups.kafka_groups import KafkaGroups
from tools.replay.load.classic_membership import HEARTBEAT_S
from tools.replay.load.pace import Pace
from tools.replay.load.results import ResultFiles
from tools.replay.load.task import COLUMNS, LoadPlan, LoadTask
from tools.replay.run.groups import groups_of
from tools.replay.run.plan import GROUP_NAMES, OutputDirectory
from tools.replay.traces.schema import FIELDS
from tools.wire.classic_member import ASSIGNOR

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PARTITIONS = 4
GROUP = "readers"
STEP_MS = 100
AHEAD_MS = 500
RECORDS_BEFORE_JOINING = 25
"""At most so many records of a partition may be there before the first member has joined."""
SCHEMA_FED = pyarrow.schema([FIELDS[name].with_nullable(True) for name in COLUMNS])


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    settings = {"offsets.topic.num.partitions": "5", "group.initial.rebalance.delay.ms": "0"}
    interval = {"group.consumer.heartbeat.interval.ms": f"{1000 * HEARTBEAT_S:.0f}"}
    return new_module_cluster(brokers=3, overrides=settings | interval)


class LiveLoad:
    """A replay of a trace that is made while it runs: one producer, and readers that fetch from their partitions in turns."""

    def __init__(self, cluster: LocalCluster, topic: str, directory: Path, protocol: str) -> None:
        self.output = OutputDirectory(directory)
        plan = LoadPlan(
            run=1,
            bootstrap=addresses_of(cluster.bootstrap_servers),
            topics=(topic,),
            pace=Pace((1.0,)),
            answer_timeout_s=60.0,
            group_names=GROUP_NAMES,
            group_protocol=protocol,
        )
        self._topic = topic
        files = ResultFiles(directory)
        self._task = LoadTask(plan, 0, time.time_ns, lambda kind, content: files.write(kind, 0, content))
        self._task.open()
        self._began = time.monotonic()
        self._task.start(time.time_ns())
        self._requests = 0
        self._fed_ms = 0

    def feed(self, readers: Mapping[str, tuple[int, ...]]) -> None:
        """Gives the task the trace up to AHEAD_MS from now."""
        rows: list[dict[str, Any]] = []
        until = int((time.monotonic() - self._began) * 1000) + AHEAD_MS
        for at in range(self._fed_ms, until, STEP_MS):
            turn = at // STEP_MS
            row = {"topic": self._topic, "partition": turn % PARTITIONS}
            rows.append(produce(at, self._requests + len(rows), client="writer", **row))
            for client, partitions in readers.items():
                row = {"topic": self._topic, "partition": partitions[turn % len(partitions)], "max_wait_ms": STEP_MS}
                rows.append(fetch(at, self._requests + len(rows), client=client, group=GROUP, max_bytes=1 << 20, **row))
            self._fed_ms = at + STEP_MS
        self._requests += len(rows)
        table = pyarrow.Table.from_pylist(rows, SCHEMA_FED)
        for batch in table.to_batches():
            assert self._task.feed(batch)

    def stop(self) -> None:
        """Ends without the rows that are not due yet."""
        self._task.stop()
        self._task.finish()

    def fetches(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(self.output.operations).to_pylist()
        return [row for row in rows if row["op"] == "fetch"]


@pytest.mark.parametrize(("protocol", "assignor"), [(CLASSIC, ASSIGNOR), (CONSUMER, "uniform")])
def test_the_group_reads_all_and_survives_its_coordinator(
    cluster: LocalCluster, protocol: str, assignor: str, tmp_path: Path
) -> None:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3)
    groups = KafkaGroups(cluster.bootstrap_servers)
    name = GROUP_NAMES + GROUP
    load = LiveLoad(cluster, topic, tmp_path / "out", protocol)

    def settled(readers: Mapping[str, tuple[int, ...]], coordinators: Collection[int]) -> GroupView | None:
        """The group, once its partitions are shared among these readers, with one of these coordinators."""
        load.feed(readers)
        (view,) = groups.describe_groups([name])
        assigned = {each.client_id: len(each.assignment) for each in view.members}
        is_there = view.state == "Stable" and view.coordinator is not None and view.coordinator.id in coordinators
        return view if is_there and assigned == dict.fromkeys(readers, PARTITIONS // len(readers)) else None

    def committed() -> set[int]:
        load.feed(after)
        return {row.partition for row in groups.committed_offsets([name])[name]}

    before, after = {"a": (0, 1, 2, 3)}, {"a": (0, 1), "b": (2, 3)}
    brokers, killed = set(cluster.broker_ids), list[int]()
    try:
        found = eventually(lambda: settled(before, brokers), "one member has all partitions")
        assert (found.type.lower(), found.assignor) == (protocol, assignor)
        eventually(lambda: settled(after, brokers), "two members share them")
        eventually(lambda: committed() == set(range(PARTITIONS)), "the offsets are committed")
        coordinator = found.coordinator.id
        cluster.kill(coordinator)
        killed.append(coordinator)
        eventually(lambda: settled(after, brokers - {coordinator}), "the group is back, with another coordinator")
    finally:
        load.stop()
        for broker in killed:
            cluster.start_broker(broker)
        cluster.wait_ready()

    (view,) = groups.describe_groups([name])
    assert (view.state, view.members) == ("Empty", ())
    fetches = load.fetches()
    assert {row["error"] for row in fetches} == {None}
    (figures,) = groups_of(load.output)
    assert (figures["group"], figures["members"], figures["error"]) == (name, 2, "")
    assert figures["rebalances"] >= 1
    assert figures["joins"] >= 3
    assert figures["commits"] > 0
    assert figures["longest_without_heartbeat_s"] > HEARTBEAT_S
    assert figures["protocol"] == protocol
    assert figures["skipped"] == 0
    ends = groups.latest_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    reached = {place: row.offset for place, row in groups.committed_offsets([name])[name].items()}
    assert all(0 < reached[place] <= ends[place] for place in ends)
    assert figures["read"] - figures["read_again"] >= sum(reached.values()) - PARTITIONS * RECORDS_BEFORE_JOINING
    groups.delete_groups([name])
