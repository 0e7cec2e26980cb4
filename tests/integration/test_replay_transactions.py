"""Transactions are replayed as transactions, from the recording of real clients to the verdict, also while a coordinator dies (RPL-2)."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import ClusterFactory
from tests.support.background_load import read_everything
from tests.support.cli import ottla
from tests.support.invariants import eventually
from tests.support.small_traces import end, fetch, produce, written
from tools.cluster.local_cluster import LocalCluster
from tools.replay.traces.schema import Trace

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]
OVERRIDES = {
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
}
PARTITIONS = 2
TRANSACTIONS = 24
"""Of each producer. Each fourth is aborted."""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides=OVERRIDES)


def create(cluster: LocalCluster, *names: str) -> None:
    """Topics; one whose name starts with `state` is compacted."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    policies = {name: "compact" if name.startswith("state") else "delete" for name in names}
    topics = [NewTopic(name, PARTITIONS, 3, config={"cleanup.policy": policy}) for name, policy in policies.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)


def record(cluster: LocalCluster, *words: str) -> None:
    done = ottla(f"replay record {' '.join(words)} --bootstrap-server {cluster.bootstrap_servers}")
    assert done.exit_code == 0, done.output


def replay(cluster: LocalCluster, trace: Path, out: Path, *options: str) -> tuple[str, dict[str, Any], list[Any]]:
    """What the replay said, its analysis, its operations."""
    done = ottla(f"replay run {trace} --dir {cluster.directory} --out {out} {' '.join(options)}")
    assert done.exit_code == 0, done.output
    operations = pyarrow.parquet.read_table(out / "operations").to_pylist()
    return done.output, json.loads((out / "analysis.json").read_text()), operations


def counts(cluster: LocalCluster, topic: str) -> list[int]:
    """Records that are committed, and all."""
    isolations = ("read_committed", "read_uncommitted")
    return [len(read_everything(cluster.bootstrap_servers, topic, PARTITIONS, isolation)) for isolation in isolations]


def key_counts(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    """Partition -> how many records its keys have."""
    found: dict[int, Counter[bytes]] = {partition: Counter() for partition in range(PARTITIONS)}
    for message in read_everything(cluster.bootstrap_servers, topic, PARTITIONS):
        found[message.partition()][message.key()] += 1
    return {partition: sorted(keys.values()) for partition, keys in found.items()}


def write_transactions(cluster: LocalCluster, group: Any) -> None:
    """Two producers in turns, and one without transactions. Each transaction commits the group's offsets, whose metadata is `group`."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5}
    writers = [Producer(servers | {"transactional.id": f"id-{n}", "client.id": f"writer-{n}"}) for n in range(2)]
    plain = Producer(servers | {"client.id": "plain"})
    for writer in writers:
        writer.init_transactions(60)
    for number in range(TRANSACTIONS):
        for writer in writers:
            writer.begin_transaction()
            for at in range(number % 5 + 1):
                writer.produce("orders", b"value" * 10, f"key-{at}", partition=at % PARTITIONS)
                writer.produce("state", b"value", f"key-{at}", partition=at % PARTITIONS)
            writer.flush(30)
            positions = [TopicPartition("orders", partition, number) for partition in range(PARTITIONS)]
            writer.send_offsets_to_transaction(positions, group, 60)
            (writer.abort_transaction if number % 4 == 3 else writer.commit_transaction)(60)
        plain.produce("state", b"value", f"key-{number}", partition=number % PARTITIONS)
        plain.flush(30)


@pytest.mark.release
def test_a_recorded_load_with_transactions_is_replayed_with_the_same_counts(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Keys, a compacted topic, commits and aborts, offsets in them, and a group that reads what is committed."""
    create(cluster, "orders", "state", "orders-again", "state-again")
    record(cluster, "start")
    settings: dict[str, Any] = {"group.id": "readers", "client.id": "reader", "isolation.level": "read_committed"}
    settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    reader.subscribe(["orders", "state"])
    taken = 0

    def poll() -> int:
        nonlocal taken
        taken += sum(message.error() is None for message in reader.consume(500, 0.05))
        return taken

    eventually(lambda: poll() == 0 and len(reader.assignment()) == 2 * PARTITIONS, "the group is assigned")
    write_transactions(cluster, reader.consumer_group_metadata())
    before = {topic: counts(cluster, topic) for topic in ("orders", "state")}
    eventually(lambda: poll() == sum(committed for committed, _ in before.values()), "the group has read it")
    until = time.monotonic() + 3  # a replay reads as long
    while time.monotonic() < until:
        poll()
    reader.close()
    record(cluster, "stop", "--out", str(tmp_path / "trace"))

    mapped = ("--map-topic", "orders=orders-again", "--map-topic", "state=state-again")
    said, analysis, operations = replay(cluster, tmp_path / "trace", tmp_path / "out", *mapped)
    assert "without a transaction" not in said
    assert "Changed:" not in said
    assert {topic: counts(cluster, f"{topic}-again") for topic in before} == before
    assert key_counts(cluster, "state-again") == key_counts(cluster, "state")
    positions = [TopicPartition("orders-again", partition) for partition in range(PARTITIONS)]
    committed = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ottla-replay-readers"})
    assert all(position.offset > 0 for position in committed.committed(positions, 30))
    ends = analysis["transactions"]
    assert {op: (found["operations"], found["failed"]) for op, found in ends.items()} == {
        "commit": (2 * TRANSACTIONS * 3 // 4, 0),
        "abort": (2 * TRANSACTIONS // 4, 0),
        "offsets": (2 * TRANSACTIONS * PARTITIONS, 0),
    }
    assert [(group["group"], group["read"], group["skipped"]) for group in analysis["groups"]] == [
        ("ottla-replay-readers", taken, 0)
    ]
    assert {row["read_committed"] for row in operations if row["op"] == "fetch" and row["client"] == "reader"} == {True}
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["acknowledged"] == taken
    assert (verdict["lost"], verdict["unseen"], verdict["read_aborted"]) == (0, 0, 0)
    assert Counter(row["op"] for row in rows_of(tmp_path / "trace")) == Counter(row["op"] for row in operations)


def rows_of(trace: Path) -> list[dict[str, Any]]:
    return [row for batch in Trace(trace).batches() for row in batch.to_pylist()]


def test_the_coordinator_dies_and_each_transaction_ends_as_in_the_trace(cluster: LocalCluster, tmp_path: Path) -> None:
    """Ten seconds of transactions of three clients with two copies each; the last one of each is left open."""
    create(cluster, "killed")
    rows: list[dict[str, Any]] = []
    for number in range(300):
        ids = {"client": f"writer-{number % 3}", "transactional_id": "the id"}
        at = number * 33
        rows += [
            produce(at + more, len(rows) + more, topic="killed", partition=more, transactional=True, **ids)
            for more in range(2)
        ]
        if number < 297:
            rows.append(end(at + 10, len(rows), "abort" if number % 5 == 4 else "commit", **ids))
        rows.append(fetch(at + 20, len(rows), topic="killed", partition=number % 2, group=None, read_committed=True))
    trace = written(tmp_path / "trace", rows, killed=PARTITIONS)
    faults = ('--fault "kill leader of __transaction_state-0 at 3s"', '--fault "restart it at 6s"')
    _, analysis, operations = replay(cluster, trace, tmp_path / "out", "--clients 2x", *faults)
    assert {row["error"] for row in operations} == {None}
    found = {op: each["operations"] for op, each in analysis["transactions"].items()}
    assert found == {"commit": 2 * (300 - 60 - 2), "abort": 2 * 59}
    committed = sum(row["op"] == "commit" for row in operations) * 2
    assert counts(cluster, "killed") == [committed, sum(row["op"] == "produce" for row in operations)]
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (verdict["acknowledged"], verdict["lost"], verdict["read_aborted"]) == (committed, 0, 0)
