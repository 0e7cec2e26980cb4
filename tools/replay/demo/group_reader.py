"""The demo's consumer group: a few members that read the topic and commit during a replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
from confluent_kafka import KafkaException, TopicPartition

from protocol.types import TopicPartition as GroupPartition
from tools.failures import AdminError
from tools.groups.kafka_groups import KafkaGroups
from tools.replay.demo.clients import METADATA_TIMEOUT_S, new_consumer
from tools.replay.demo.group_member import ASSIGNOR, GroupMember, GroupRead
from tools.replay.run.driver import end_offsets
from tools.replay.run.plan import OutputDirectory, Plan, ReplayError, write_json
from tools.wire.security import Security

MEMBERS = 3
FACTS, READS = "group.json", "group-reads.parquet"
COORDINATOR_TIMEOUT_S = 20.0
CATCH_UP_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.1
NAMES_TRIED = 20
SCHEMA = pyarrow.schema(
    [
        ("member", pyarrow.int32()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("event_id", pyarrow.int64()),
        ("at", pyarrow.float64()),
    ]
)

Answer = TypeVar("Answer")


class GroupReader:
    """A group named `name` and its members. Whoever starts it must stop it, however the replay ends."""

    def __init__(
        self,
        name: str,
        coordinator: int | None,
        topic: str,
        plan: Plan,
        output: OutputDirectory,
        security: Security,
    ) -> None:
        """`coordinator`: the id of its current coordinator."""
        self.name = name
        self._topic = topic
        self.coordinator = coordinator
        self._plan = plan
        self._security = security
        self._properties = security.librdkafka_properties()
        self._directory = output.path
        self._members: list[GroupMember] = []

    def start(self, members: int = MEMBERS) -> None:
        """Starts reading where the replay starts. Raises ReplayError if the cluster does not accept the group."""
        groups = KafkaGroups(self._plan.bootstrap_servers, properties=self._properties)
        starts = {
            GroupPartition(self._topic, partition): offset
            for partition, offset in enumerate(self._plan.start_offsets[self._topic])
        }
        patiently(lambda: groups.alter_offsets(self.name, starts))
        for number in range(1, members + 1):
            member = GroupMember(
                number, self.name, self._plan.bootstrap_servers, self._properties, self._topic, self._plan.run
            )
            self._members.append(member)
            member.start()

    def finish(self) -> None:
        """Waits, at most half a minute, until the group has committed the end of every partition, and writes its results.
        `stop` makes the members leave."""
        lag = self._catch_up()
        members = self._members
        write_json(
            self._directory / FACTS,
            {
                "group": self.name,
                "assignor": ASSIGNOR,
                "coordinators": [self.coordinator, self._coordinator_now()],
                "lag": lag,
                "members": [
                    {
                        "member": member.number,
                        "partitions": sorted(member.partitions),
                        "assigned_at": list(member.assigned_at),
                        "committed_at": list(member.committed_at),
                        "failed_commits": member.failed_commits,
                    }
                    for member in members
                ],
            },
        )
        reads = [read for member in members for read in member.reads.copy()]
        table = pyarrow.Table.from_pylist([read._asdict() for read in reads], schema=SCHEMA)
        pyarrow.parquet.write_table(table, self._directory / READS)

    def stop(self) -> None:
        for member in self._members:
            member.ask_to_stop()
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        for member in self._members:
            member.join(max(deadline - time.monotonic(), 0.0))

    def _catch_up(self) -> int | None:
        """The group's lag behind the current ends, once it is 0 or the time is over; None if unknown."""
        # Not with the AdminClient: its library (librdkafka 2.16) crashes if the coordinator that it knew no longer is one.
        consumer = new_consumer(self._plan.bootstrap_servers, self._properties, self.name)
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        partitions = range(self._plan.partitions[self._topic])
        ends: list[int] | None = None
        lag: int | None = None
        try:
            while lag != 0 and time.monotonic() < deadline:
                try:
                    if ends is None:
                        ends = end_offsets(self._plan.bootstrap_servers, self._security, [self._topic])[self._topic]
                    places = [TopicPartition(self._topic, partition) for partition in partitions]
                    committed = consumer.committed(places, timeout=METADATA_TIMEOUT_S)
                    lag = sum(max(ends[each.partition] - max(each.offset, 0), 0) for each in committed)
                except (KafkaException, ReplayError):
                    lag = None  # a leader or the coordinator is unavailable
                if lag != 0:
                    time.sleep(ASK_AGAIN_S)
        finally:
            consumer.close()
        return lag

    def _coordinator_now(self) -> int | None:
        try:
            groups = KafkaGroups(self._plan.bootstrap_servers, properties=self._properties)
            return coordinator_of(groups, [self.name])[self.name]
        except AdminError:
            return None


def coordinator_of(groups: KafkaGroups, names: list[str]) -> dict[str, int | None]:
    """Name -> the id of the broker that coordinates a group of that name, existing or not. Raises AdminError."""
    return {
        view.group: None if view.coordinator is None else view.coordinator.id for view in groups.describe_groups(names)
    }


def patiently(ask: Callable[[], Answer]) -> Answer:
    """The answer; retries while new coordinators report that they are loading. Raises
    ReplayError."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    while True:
        try:
            return ask()
        except AdminError as problem:
            if time.monotonic() > deadline:
                raise ReplayError(str(problem)) from None
            time.sleep(ASK_AGAIN_S)


def choose_name(
    bootstrap_servers: str, properties: Mapping[str, str], base: str, broker: int | None
) -> tuple[str, int | None]:
    """A name of a group that `broker` coordinates (the name decides that): `base`, or `base` with a number; and the
    coordinator. Just `base` if `broker` is None or coordinates none of those names. Raises ReplayError."""
    names = [base] if broker is None else [base, *(f"{base}-{number}" for number in range(2, NAMES_TRIED + 1))]
    groups = KafkaGroups(bootstrap_servers, properties=properties)
    coordinators = patiently(lambda: coordinator_of(groups, names))
    name = next((name for name in names if coordinators[name] == broker), base)
    return name, coordinators[name]


def read_group(output: OutputDirectory) -> tuple[dict[str, Any], list[GroupRead]]:
    """The results that `finish` wrote."""
    facts: dict[str, Any] = json.loads((output.path / FACTS).read_text())
    columns = pyarrow.parquet.read_table(output.path / READS, columns=list(GroupRead._fields)).to_pydict()
    return facts, [GroupRead(*row) for row in zip(*columns.values(), strict=True)]
