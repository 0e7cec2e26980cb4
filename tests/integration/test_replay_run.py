"""`ottla replay run`: real traces through real clusters, with faults, bad input and an interrupt."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cli import COMMAND, ottla
from tests.support.invariants import eventually
from tests.support.small_traces import produce, written
from tools.cluster.local_cluster import LocalCluster
from tools.replay.traces.schema import SCHEMA, TraceInfo, TraceWriter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
MS = 1_000_000
TOPIC = "replayed"
PARTITIONS = 3


def write_trace(
    path: Path,
    operations: int,
    apart_ms: float = 2.0,
    topic: str = TOPIC,
    acks: tuple[int, int, int, int] = (-1, -1, 1, 0),
) -> Path:
    """Four producers that differ in acks and compression, and two consumers; every fifth operation is a fetch."""
    rows: list[dict[str, Any]] = []
    for number in range(operations):
        common = {"time_ns": int(number * apart_ms * MS), "request": number, "topic": topic, "records": 1 + number % 5}
        common |= {"bytes": 400, "partition": number // 5 % PARTITIONS}
        if number % 5 == 4:
            fetch = {"op": "fetch", "client": f"reader-{number % 2}", "min_bytes": 1, "max_wait_ms": 100}
            rows.append({**common, **fetch, "max_bytes": 1 << 20})
            continue
        produce = {
            "op": "produce",
            "client": f"writer-{number % 4}",
            "transactional": False,
            "acks": acks[number % 4],
        }
        produce["compression"] = ("none", "zstd", "lz4", "gzip")[number % 4]
        if number % 2:
            produce |= {"partition": -1, "key_hash": number}
        rows.append({**common, **produce})
    with TraceWriter(path, TraceInfo(1_700_000_000 * 1000 * MS, "made by a test", {topic: PARTITIONS})) as writer:
        writer.write(pyarrow.Table.from_pylist(rows, schema=SCHEMA))
    return path


def command(*arguments: str | Path) -> list[str]:
    return [*COMMAND, "replay", "run", *map(str, arguments)]


def run(*arguments: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout, check=False)


def in_this_process(*arguments: str | Path) -> Result:
    return ottla(shlex.join(["replay", "run", *map(str, arguments)]))


def keys_in(servers: str, topic: str) -> list[bytes | None]:
    """The keys of all records of the topic's partition 0."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "nobody", "enable.auto.commit": False})
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        found: list[bytes | None] = []
        while len(found) < end:
            found += [message.key() for message in consumer.consume(end - len(found), timeout=30)]
        return found
    finally:
        consumer.close()


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(out / "operations").to_pylist()
    return rows


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers of which tests kill one."""
    cluster = LocalCluster(tmp_path_factory.mktemp("replay") / "cluster")
    try:
        cluster.create(brokers=3)
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


def test_a_trace_is_replayed_while_a_leader_dies(cluster: LocalCluster, tmp_path: Path) -> None:
    """Every operation of the trace has one row; batches have the trace's records, acks and compression; nothing with acks=all is lost, or
    out of order beside the same client's batches with other acks."""
    operations = 2000
    acks = -1, 1, -1, 0  # what acks=1 acknowledges may be lost with the leader, and is counted apart
    trace = write_trace(tmp_path / "trace", operations, acks=acks)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    settings = {"min.insync.replicas": "2"}
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=settings)]).values():
        future.result(30)
    out = tmp_path / "out"
    faults = ("--fault", f"kill leader of {TOPIC}-0 at 1s", "--fault", "restart it at 3s")
    done = run(trace, "--dir", cluster.directory, "--out", out, *faults)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(out)
    assert sorted(row["request"] for row in rows) == list(range(operations))
    assert {row["error"] for row in rows} == {None}
    for row in rows:
        if row["op"] == "produce":
            assert row["records"] == 1 + row["request"] % 5
            assert row["acks"] == acks[row["request"] % 4]
            assert row["partition"] == (row["request"] if row["request"] % 2 else row["request"] // 5) % PARTITIONS
    verdict = json.loads((out / "verdict.json").read_text())
    acknowledged = sum(row["records"] for row in rows if row["op"] == "produce" and row["acks"])
    assert verdict["acknowledged"] == acknowledged
    wrong = ("lost", "corrupted", "unseen", "elsewhere", "duplicated", "reordered")
    assert [verdict[name] for name in wrong] == [0] * len(wrong)
    faults_done = json.loads((out / "faults.json").read_text())
    assert [(row["verb"], row["error"]) for row in faults_done] == [("kill", ""), ("restart", "")]
    assert [TOPIC, 0] in faults_done[0]["partitions"]


@pytest.mark.thorough
def test_factors_other_topics_and_repeats(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    """--clients, --bytes, --map-topic, --create-topics, and as fast as possible; twice, after a warm-up that no run contains."""
    trace = write_trace(tmp_path / "trace", 200)
    out = tmp_path / "out"
    options = (
        "--bootstrap-server",
        shared_cluster.bootstrap_servers,
        "--out",
        out,
        "--speed",
        "max",
        "--create-topics",
    )
    factors = ("--clients", "3x", "--bytes", "2x", "--map-topic", f"{TOPIC}=elsewhere")
    done = run(trace, *options, *factors, "--repeat", "2", "--warm-up", "1s")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("run-1", "run-2"):
        rows = rows_of(out / name)
        assert len(rows) == 600
        assert {row["topic"] for row in rows} == {"elsewhere"}
        assert all(row["scheduled"] == row["sent"] >= row["ready"] for row in rows), "a closed loop has no schedule"
        assert {"writer-0-0", "writer-0-1", "writer-0-2"} <= {row["client"] for row in rows}
        assert {row["bytes"] for row in rows if row["client"] == "writer-0-0"} <= set(range(790, 801))
    assert "from the sent time, in a closed loop" in done.stdout
    compared = ottla(f"replay compare {out}/run-1 {out}/run-2 --out {tmp_path}/compared")
    assert compared.exit_code == 2  # one run each says nothing
    assert "Different load" not in compared.output


@pytest.mark.release
def test_a_topic_of_records_with_keys_is_imported_and_replayed_to_a_compacted_topic(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The replay writes as many different keys as were recorded; a trace without keys gets some, and the replay says so."""
    servers = shared_cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "linger.ms": "20"})
    for number in range(300):
        producer.produce("keyed", f"value-{number}" * 3, f"key-{number % 17}", partition=0)
        if number % 50 == 0:
            producer.flush(30)
    producer.flush(30)
    ottla(f"topic create again --partitions 1 --config cleanup.policy=compact --bootstrap-server {servers}")
    assert ottla(f"replay trace import topic keyed --out {tmp_path}/keyed --bootstrap-server {servers}").exit_code == 0
    keyless = written(tmp_path / "keyless", [produce(at, at, topic="again", records=2) for at in range(20)], again=1)
    written_keys: list[list[bytes | None]] = []
    for trace, options in ((tmp_path / "keyed", ("--map-topic", "keyed=again")), (keyless, ())):
        before = sum(map(len, written_keys))
        done = run(
            trace, "--bootstrap-server", servers, "--out", tmp_path / f"out-{trace.name}", "--speed", "max", *options
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("Changed: topic again is compacted, and 20 produces of the trace have no keys" in done.stdout) == (
            trace == keyless
        )
        written_keys.append(keys_in(servers, "again")[before:])
    assert [(len(keys), len(set(keys))) for keys in written_keys] == [(300, 17), (40, 20)]
    assert {len(key or b"") for key in written_keys[0]} == {5}  # the mean of `key-0` to `key-16`


@pytest.mark.thorough
def test_an_interrupt_keeps_what_was_measured(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", 5000, apart_ms=20)
    out = tmp_path / "out"
    options = ("--bootstrap-server", shared_cluster.bootstrap_servers, "--out", out, "--create-topics")
    with (tmp_path / "log").open("w") as log:
        replay = subprocess.Popen(command(trace, *options), stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: any((out / "operations").glob("*.parquet")), "the first rows are written", timeout_s=120)
        os.killpg(replay.pid, signal.SIGINT)
        assert replay.wait(120) == 2, (tmp_path / "log").read_text()  # the rest was not done
    finally:
        replay.kill()
        replay.wait()
    rows = rows_of(out)
    assert 0 < len(rows) < 5000
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["acknowledged"] == sum(row["records"] for row in rows if row["op"] == "produce" and row["acks"])
    assert verdict["lost"] == 0


def test_bad_input_is_one_line_and_leaves_nothing(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    servers = ("--bootstrap-server", shared_cluster.bootstrap_servers)
    trace = write_trace(tmp_path / "trace", 10, topic="not-there")
    empty = tmp_path / "empty"
    empty.mkdir()
    table = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), table)
    small = write_trace(tmp_path / "small", 100, topic="one-partition")
    admin = AdminClient({"bootstrap.servers": shared_cluster.bootstrap_servers})
    admin.create_topics([NewTopic("one-partition", 1, 1)])["one-partition"].result(30)
    for arguments, says in (
        ((trace, *servers), "topic 'not-there' does not exist"),
        ((trace, *servers, "--map-topic", "x=y"), "the trace has no topic 'x'; it has not-there"),
        ((small, *servers), "the trace has partition 2 of one-partition, but topic 'one-partition' has 1 partitions"),
        ((tmp_path / "nowhere", *servers), "nowhere: no such trace"),
        ((empty, *servers), "is not a trace: the directory has no *.parquet file"),
        ((table, *servers), "is not a trace: it has no column time_ns"),
        ((trace, "--bootstrap-server", "127.0.0.1:1"), "no broker of 127.0.0.1:1 answers"),
    ):
        done = in_this_process(*arguments, "--out", tmp_path / "out")
        assert done.exit_code == 1, done.output
        assert says in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()
    for arguments, says in (
        (("--fault", "drown leader of t-0 at 3s"), "the actions are kill"),
        (("--fault", "kill controller at 3s"), "--fault needs the cluster that it hits"),
        (("--speed", "-1"), "-1"),
        (("--ramp", "4x..2x/3s"), "the first speed must be below the last"),
        (("--no-groups", "--group-protocol", "consumer"), "--no-groups and --group-protocol consumer contradict"),
    ):
        done = in_this_process(trace, *servers, *arguments)
        assert done.exit_code == 2
        assert says in done.stderr
