"""A recorded load is what clients and logs say it was: every batch, every record, every group (RPL-5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol.kafka.record_batch import iter_batches
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster
from tools.replay.recording.recording_commands import record
from tools.replay.traces.schema import COMPRESSIONS, Trace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RECORDS = 400
"""Of each producer."""
PRODUCERS = ((0, "none"), (1, "gzip"), (-1, "snappy"), (-1, "lz4"), (1, "zstd"))
"""(acks, compression)"""


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides={"offsets.topic.num.partitions": "5"})


@pytest.fixture
def run(cluster: LocalCluster) -> Iterator[Callable[..., Result]]:
    """`ottla replay record ...`"""

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(record, [*words, "--bootstrap-server", cluster.bootstrap_servers])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    yield run
    CliRunner().invoke(record, ["stop", "--discard", "--bootstrap-server", cluster.bootstrap_servers])


def client_name(acks: int, compression: str) -> str:
    return f"producer {acks} {compression}"


def produce(cluster: LocalCluster, topic: str, acks: int, compression: str, records: int = RECORDS) -> None:
    settings = {"client.id": client_name(acks, compression), "acks": acks, "compression.type": compression}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 2, **settings})
    for number in range(records):
        producer.produce(topic, b"value %d " % number * (1 + number % 50), partition=number % PARTITIONS)
        if number % 40 == 0:
            producer.poll(0.005)
    assert producer.flush(60) == 0


def new_consumer(cluster: LocalCluster, client: str, group: str, **config: Any) -> Consumer:
    settings = {"client.id": client, "group.id": group, "auto.offset.reset": "earliest", "log_level": 2}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    return Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.commit.interval.ms": 200, **settings})


def logged_batches(cluster: LocalCluster, topic: str) -> Counter[tuple[int, int, int, str]]:
    """(partition, records, bytes, compression) of every batch, as broker 1's log has it."""
    found: Counter[tuple[int, int, int, str]] = Counter()
    for partition in range(PARTITIONS):
        (segment,) = (cluster.broker_directory(1) / "data" / f"{topic}-{partition}").glob("*.log")
        for _, header in iter_batches(segment.read_bytes()):
            found[partition, header.record_count, header.size_in_bytes, COMPRESSIONS[header.compression]] += 1
    return found


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [row for batch in Trace(out).batches() for row in batch.to_pylist()]


def recording_files(cluster: LocalCluster) -> list[Path]:
    return [
        path for broker in cluster.broker_ids for path in (cluster.broker_directory(broker) / "data").glob("recording*")
    ]


def test_the_trace_has_what_the_clients_did(cluster: LocalCluster, run: Callable[..., Result], tmp_path: Path) -> None:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3)
    run("start")
    assert "there already" in run("start", code=1).output

    members = [new_consumer(cluster, f"member {number}", "readers") for number in range(2)]
    taken = [0, 0]

    def poll() -> int:
        for number, member in enumerate(members):
            taken[number] += sum(message.error() is None for message in member.consume(500, 0.05))
        return sum(taken)

    for member in members:
        member.subscribe([topic])
    eventually(lambda: poll() == 0 and all(len(m.assignment()) == PARTITIONS // 2 for m in members), "assigned")
    for acks, compression in PRODUCERS:
        produce(cluster, topic, acks, compression)
    everything = RECORDS * len(PRODUCERS)
    eventually(lambda: poll() == everything, "all was read by the group")
    for member in members:
        member.close()

    reader = new_consumer(cluster, "catch-up", "not used", enable_auto_commit=False)
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    caught_up = 0

    def catch_up() -> int:
        nonlocal caught_up
        caught_up += sum(message.error() is None for message in reader.consume(500, 0.05))
        return caught_up

    eventually(lambda: catch_up() == everything, "all was read by the reader")
    reader.close()

    status = json.loads(run("status", "--format", "json").output)
    assert [(row["broker"], row["recording"], row["dropped"]) for row in status["brokers"]] == [
        (broker, True, 0) for broker in cluster.broker_ids
    ]
    out = tmp_path / "trace"
    report = run("stop", "--out", str(out)).output
    assert f"produce  {len({r['request'] for r in rows_of(out) if r['op'] == 'produce'}):,} requests" in report
    assert "groups: readers" in report

    rows = [row for row in rows_of(out) if row["topic"] == topic]
    produced = [row for row in rows if row["op"] == "produce"]
    batches = Counter((r["partition"], r["records"], r["bytes"], r["compression"]) for r in produced)
    assert batches == logged_batches(cluster, topic)
    records = Counter[tuple[str, int]]()
    for row in produced:
        records[row["client"], row["acks"]] += row["records"]
    assert records == {(client_name(acks, compression), acks): RECORDS for acks, compression in PRODUCERS}

    fetched = [row for row in rows if row["op"] == "fetch"]
    of_client = Counter[str]()
    for row in fetched:
        of_client[row["client"]] += row["records"]
    got = {"member 0": taken[0], "member 1": taken[1], "catch-up": everything}
    assert of_client.keys() == got.keys()
    # librdkafka may fetch records twice, of which it drops the first: after a pause of its queue, and within a batch.
    assert all(got[client] <= count < got[client] + RECORDS for client, count in of_client.items())
    assert {(row["client"], row["group"]) for row in fetched} == {
        ("member 0", "readers"),
        ("member 1", "readers"),
        ("catch-up", None),
    }
    first = {row["partition"]: row for row in reversed(fetched) if row["client"] == "catch-up" and row["records"]}
    ends = dict.fromkeys(range(PARTITIONS), (0, everything // PARTITIONS))
    assert {partition: (row["offset"], row["behind"]) for partition, row in first.items()} == ends
    info = Trace(out).info
    assert (info.topics[topic], info.dropped) == (PARTITIONS, 0)
    assert recording_files(cluster) == [] or eventually(lambda: not recording_files(cluster), "the files are removed")
    assert "record nothing" in run("status").output


def test_a_broker_that_died_is_named_and_one_that_came_back_continues(
    cluster: LocalCluster, run: Callable[..., Result], tmp_path: Path
) -> None:
    topic = new_topic(cluster.bootstrap_servers, assignment=[[3, 1, 2]] * PARTITIONS)
    run("start", "--hash-clients", "--topic", topic)
    produce(cluster, topic, -1, "none", 40)
    written = sum(logged_batches(cluster, topic).values())
    eventually(lambda: _rows_of(run, 3) >= written, "broker 3 has written its rows")
    cluster.kill(3)
    out = tmp_path / "trace"
    refused = run("stop", "--out", str(out), code=1).output
    assert "broker 3 is down" in refused or "broker 3 does not answer" in refused
    assert "Nothing was changed" in refused
    assert not out.exists()

    cluster.start_broker(3)
    cluster.wait_ready()
    eventually(lambda: "broker 3: on" in run("status").output, "broker 3 records again")
    produce(cluster, topic, 1, "zstd", 40)
    run("stop", "--out", str(out))
    produced = [row for row in rows_of(out) if row["op"] == "produce"]
    batches = Counter((r["partition"], r["records"], r["bytes"], r["compression"]) for r in produced)
    assert batches == logged_batches(cluster, topic)
    assert not {row["client"] for row in produced} & {client_name(-1, "none"), client_name(1, "zstd")}
    assert len({row["client"] for row in produced}) == 2

    run("start")
    produce(cluster, topic, -1, "none", 40)
    cluster.kill(3)
    produce(cluster, topic, 1, "gzip", 40)
    report = run("stop", "--allow-missing", "--out", str(tmp_path / "rest")).output
    assert [line for line in report.splitlines() if "broker 3" in line and line.endswith("its rows are missing")]
    later = [row for row in rows_of(tmp_path / "rest") if row["client"] == client_name(1, "gzip")]
    assert sum(row["records"] for row in later) == 40
    assert recording_files(cluster) != []
    cluster.start_broker(3)
    eventually(lambda: not recording_files(cluster), "broker 3 has removed its file")


def _rows_of(run: Callable[..., Result], broker: int) -> int:
    status = json.loads(run("status", "--format", "json").output)
    return sum(row["rows"] for row in status["brokers"] if row["broker"] == broker)
