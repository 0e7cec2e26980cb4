"""`__consumer_offsets` between us and a real Kafka: its tool decodes what we write, and we read what it wrote (CLI-2, FMT-3)."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.groups.group.messages import CommittedOffset, GroupMetadata, MemberMetadata
from broker.groups.offsets_topic.records import encode_group_key
from broker.groups.offsets_topic.writer import OffsetsWriter, WriterSettings
from broker.process.clock import SystemClock
from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tests.support.group_members import commit_from_outside, joined_consumer, new_consumer
from tests.support.invariants import eventually
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import Kind, SwappableBroker
from tests.support.topics import create_topics, fill

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

RECORD = re.compile(r" key: (\{.*\}) payload: (.*)$", re.MULTILINE)
ROUNDS = 120
OFFSETS_PARTITIONS = 5
SETTINGS = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.initial.rebalance.delay.ms": "0",
}


class StraightToTheLog:
    """A replica manager of one log without followers."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, acks: int, timeout_ms: int, entries: Any, respond: Callable[[Any], None], **_: object) -> None:
        info = self._log.append_as_leader(entries[0][1], 0)
        respond([type("Result", (), {"error": 0, "base_offset": info.first_offset})])


class Writer:
    """Writes groups, offsets and tombstones by chance, and notes how Kafka's tool should show each record."""

    def __init__(self, log: Log, seed: int) -> None:
        self.expected: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        self._chance = random.Random(seed)
        self._topics = [
            OffsetsWriter(StraightToTheLog(log), SystemClock(), WriterSettings(compression=number))
            for number in range(5)
        ]

    def write(self) -> None:
        self._chance.choice((self._group, self._commit, self._remove))(self._chance.choice(self._topics))

    def _text(self, *extra: str) -> str:
        return self._chance.choice(("", "a", "grüppe-😀", 'with "quotes"', "x" * 300, *extra))

    def _partition(self) -> TopicPartition:
        return TopicPartition(self._chance.choice(("t", "orders.eu", "u" * 249)), self._chance.randrange(2**31))

    def _group(self, topic: OffsetsWriter) -> None:
        chance = self._chance
        # Of another type than "consumer": the tool then shows subscription and assignment as they are.
        members = [
            MemberMetadata(
                f"member-{number}",
                self._text() if chance.random() < 0.5 else None,
                self._text(),
                "/127.0.0.1",
                chance.randrange(2**31),
                chance.randrange(2**31),
                chance.randbytes(chance.randrange(50)),
                chance.randbytes(chance.randrange(50)),
            )
            for number in range(chance.randrange(4))
        ]
        name, leader = (self._text("range"), members[0].member_id) if members else (None, None)
        since_ms = chance.randrange(-1, 2**45)
        group = GroupMetadata("connect", chance.randrange(2**31), name, leader, since_ms, tuple(members))
        group_id = self._text("g" * 10_000)
        topic.store_group(0, group_id, group, lambda error: None)
        shown = {
            "protocolType": "connect",
            "generation": group.generation,
            "protocol": name,
            "leader": leader,
            "currentStateTimestamp": since_ms,
            "members": [
                {
                    "memberId": member.member_id,
                    "groupInstanceId": member.instance_id,
                    "clientId": member.client_id,
                    "clientHost": member.client_host,
                    "rebalanceTimeout": member.rebalance_timeout_ms,
                    "sessionTimeout": member.session_timeout_ms,
                    "subscription": base64.b64encode(member.subscription).decode(),
                    "assignment": base64.b64encode(member.assignment).decode(),
                }
                for member in members
            ],
        }
        self.expected.append(({"type": "2", "data": {"group": group_id}}, {"version": "3", "data": shown}))

    def _commit(self, topic: OffsetsWriter) -> None:
        chance = self._chance
        offsets = {
            self._partition(): CommittedOffset(
                chance.randrange(2**63),
                chance.randrange(-1, 2**31),
                self._text("m" * 4096),
                chance.randrange(2**45),
                chance.choice((None, None, chance.randrange(2**45))),
                chance.choice((None, chance.randbytes(16))),
            )
            for _ in range(chance.randrange(1, 6))
        }
        group_id = self._text()
        topic.commit(0, group_id, offsets, lambda error, base: None)
        for tp, committed in offsets.items():
            shown: dict[str, Any] = {"offset": committed.offset, "metadata": committed.metadata}
            shown["commitTimestamp"] = committed.commit_timestamp_ms
            if committed.expire_timestamp_ms is None:
                shown["leaderEpoch"] = committed.leader_epoch
                value = {"version": "3", "data": shown}
            else:
                shown["expireTimestamp"] = committed.expire_timestamp_ms
                value = {"version": "1", "data": shown}
            self.expected.append((offset_key(group_id, tp), value))

    def _remove(self, topic: OffsetsWriter) -> None:
        group_id = self._text()
        partitions = [self._partition() for _ in range(self._chance.randrange(1, 4))]
        with_group = self._chance.random() < 0.5
        topic.remove(
            0, group_id, partitions, lambda error, base: None, group_keys=[encode_group_key(group_id)] * with_group
        )
        self.expected += [(offset_key(group_id, tp), None) for tp in partitions]
        if with_group:
            self.expected.append(({"type": "2", "data": {"group": group_id}}, None))


def offset_key(group_id: str, tp: TopicPartition) -> dict[str, Any]:
    return {"type": "1", "data": {"group": group_id, "topic": tp.topic, "partition": tp.partition}}


def decoded(output: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    return [
        (json.loads(key), None if value == "<DELETE>" else json.loads(value)) for key, value in RECORD.findall(output)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_kafkas_decoder_reads_our_records(kafka_tools: KafkaTools, tmp_path: Path, seed: int) -> None:
    async def write() -> Writer:
        manager = LogManager([str(tmp_path)], TopicConfig(), FileSystem(), SystemClock())
        await manager.start()
        log = manager.get_or_create(TopicPartition(OFFSETS_TOPIC, 0), "AAAAAAAAAAAAAAAAAAAAWA", {})
        writer = Writer(log, seed)
        for _ in range(ROUNDS):
            writer.write()
        await manager.shutdown()
        return writer

    writer = asyncio.run(write())
    output = kafka_tools.dump(sorted((tmp_path / f"{OFFSETS_TOPIC}-0").glob("*.log")), "--offsets-decoder")
    assert decoded(output) == writer.expected


Committed = dict[str, dict[tuple[str, int], tuple[int, str]]]
"""Group -> (topic, partition) -> (offset, metadata)."""


def commit_as_groups_do(bootstrap_servers: str) -> Committed:
    """Commits by members, by a consumer without membership, in transactions, and for a group that is deleted. Returns the rest."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(bootstrap_servers, NewTopic("t", 3, 1))
    fill(bootstrap_servers, "t", map(str, range(30)), partitions=3)
    for group_id in ("members", "grüppe"):
        with joined_consumer(bootstrap_servers, group_id, "t") as consumer:
            offsets = [ClientPartition("t", 0, 4, metadata="müta"), ClientPartition("t", 1, 5)]
            consumer.commit(offsets=offsets, asynchronous=False)
            consumer.commit(offsets=[ClientPartition("t", 0, 7)], asynchronous=False)
    commit_from_outside(bootstrap_servers, "simple", "t", {n: n + 1 for n in range(3)})
    in_transactions(bootstrap_servers)
    commit_from_outside(bootstrap_servers, "deleted", "t", {0: 1})
    admin.delete_consumer_groups(["deleted"])["deleted"].result(30)
    return committed_of(bootstrap_servers, ["members", "grüppe", "simple", "transactional"])


def committed_of(bootstrap_servers: str, groups: Sequence[str]) -> Committed:
    committed = {}
    for group_id in groups:
        asked = new_consumer(bootstrap_servers, group_id)
        answer = eventually(partial(committed_when_served, asked), f"the coordinator of {group_id}")
        committed[group_id] = {
            (tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in answer if tp.offset >= 0
        }
        asked.close()
    return committed


def committed_when_served(consumer: Consumer) -> list[ClientPartition] | None:
    """None while a broker that has just started does not lead the group's partition yet, or loads it."""
    try:
        found: list[ClientPartition] = consumer.committed([ClientPartition("t", n) for n in range(3)], timeout=30)
    except KafkaException as problem:
        if problem.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
            raise
        return None
    return found


def in_transactions(bootstrap_servers: str) -> None:
    """One transaction that is committed and one that is aborted, of the same producer and group."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "tx"})
    producer.init_transactions(30)
    with joined_consumer(bootstrap_servers, "transactional", "t") as consumer:
        for offset, end in ((5, producer.commit_transaction), (9, producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce("t", b"in a transaction", partition=0)
            offsets = [ClientPartition("t", 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            end(30)


def states(bootstrap_servers: str) -> dict[str, tuple[str, bool]]:
    """Group -> (state, has it only offsets), as ListGroups and DescribeGroups show them; not that of the console consumer."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    listed = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
    names = [name for name in listed if not name.startswith("console-consumer")]
    described = {name: future.result(30) for name, future in admin.describe_consumer_groups(names).items()}
    return {name: (group.state.name, group.is_simple_consumer_group) for name, group in described.items()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writer", ["ottla", "Kafka"])
def test_each_continues_the_groups_of_the_other(kafka_tools: KafkaTools, tmp_path: Path, writer: Kind) -> None:
    """Both show the same groups and offsets, and each sees what the other has committed."""
    reader: Kind = "Kafka" if writer == "ottla" else "ottla"
    with SwappableBroker(tmp_path, kafka_tools, SETTINGS) as broker:
        servers = broker.bootstrap_servers
        broker.start(writer)
        committed = commit_as_groups_do(servers)
        assert committed["transactional"] == {("t", 0): (5, "")}
        shown = states(servers)
        assert set(shown) == set(committed)
        formatted = offsets_formatted(kafka_tools, servers)
        assert "[members,t,0]::OffsetAndMetadata(offset=4, leaderEpoch=Optional.empty, metadata=müta" in formatted
        assert "[deleted,t,0]::NULL" in formatted
        broker.stop(signal.SIGTERM)
        broker.start(reader, {OFFSETS_TOPIC: OFFSETS_PARTITIONS})
        assert committed_of(servers, list(committed)) == committed
        assert states(servers) == shown
        for group_id in committed:
            commit_from_outside(servers, group_id, "t", {2: 9})
            committed[group_id]["t", 2] = (9, "")
        broker.stop(signal.SIGTERM)
        broker.start(writer, {OFFSETS_TOPIC: OFFSETS_PARTITIONS})
        assert committed_of(servers, list(committed)) == committed
        assert states(servers) == shown


def offsets_formatted(kafka_tools: KafkaTools, bootstrap_servers: str) -> str:
    """What Kafka's console consumer shows of the topic."""
    command = (
        f"org.apache.kafka.tools.consumer.ConsoleConsumer --topic {OFFSETS_TOPIC} --from-beginning --timeout-ms 20000"
    )
    formatter = "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter"
    return kafka_tools.run(*command.split(), "--bootstrap-server", bootstrap_servers, "--formatter", formatter)
