"""`ottla produce` and `ottla consume` against ottla, and the same against a real Kafka (CLI-1, CLI-2).

The unit tests in tests/unit/tools/clients have what needs no broker: options, formats, lines that cannot be read.
"""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.cli import OURS_AND_KAFKAS, Cli
from tests.support.invariants import eventually

pytestmark = pytest.mark.integration
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def new_topic(cli: Cli, partitions: int = 1) -> str:
    name = f"lines-{uuid.uuid4().hex[:8]}"
    cli.output("topic", "create", name, "--partitions", str(partitions), "--replication-factor", "1")
    return name


def consumed(cli: Cli, *arguments: str) -> str:
    done = cli.run("consume", *arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def lag_and_members(cli: Cli, group: str) -> tuple[list[int], list[object]]:
    (described,) = cli.json("group", "describe", group)
    return [row["lag"] for row in described["offsets"]], described["members"]


def everything(cli: Cli, topic: str, template: str) -> str:
    return consumed(cli, topic, "--from-beginning", "--exit-at-end", "--format", template)


def test_lines_come_back(cli: Cli) -> None:
    topic = new_topic(cli)
    assert cli.output("produce", topic, stdin="one\n\nthree ä\nlast") == f"Produced 4 records to {topic}.\n"
    assert everything(cli, topic, "%o:%s\\n") == "0:one\n1:\n2:three ä\n3:last\n"
    said = cli.output("produce", topic, "--acks", "0", stdin="a\nb\n")
    assert said == f"Sent 2 records to {topic}; with --acks 0 it is unknown whether they were written.\n"


@OURS_AND_KAFKAS
def test_keys_headers_nulls_partitions(cli: Cli) -> None:
    topic = new_topic(cli, partitions=3)
    options = ["--key-separator", ":", "--header", "from=test", "--parse-headers", "--null-value", "NULL"]
    options += ["--partition", "2", "--compression", "zstd", "--acks", "1"]
    cli.output("produce", topic, *options, stdin="a:1,b:2\tk:v:w\n\tgone:NULL\n")
    assert everything(cli, topic, "%t %p %o %k=%s %S %h\\n") == (
        f"{topic} 2 0 k=v:w 3 from=test,a=1,b=2\n{topic} 2 1 gone= -1 from=test\n"
    )


def test_keys_go_where_javas_producers_put_them(cli: Cli) -> None:
    topic = new_topic(cli, partitions=6)
    keys = [f"key-{number}" for number in range(20)]
    cli.output("produce", topic, "--key-separator", "=", stdin="".join(f"{key}=v\n" for key in keys))
    reference = Producer({"bootstrap.servers": cli.bootstrap_servers, "partitioner": "murmur2"})
    for key in keys:
        reference.produce(topic, b"w", key.encode())
    assert reference.flush(20) == 0
    places = {tuple(line.split()) for line in everything(cli, topic, "%k %p\\n").splitlines()}
    assert sorted(key for key, _ in places) == sorted(keys), "each key has one partition"


def test_produce_reads_the_json_that_consume_prints(cli: Cli, tmp_path: Path) -> None:
    topic, copy = new_topic(cli), new_topic(cli)
    lines = [
        {"key": "k", "value": "v", "headers": {"a": "1"}, "timestamp": 1700000000000},
        {"key_base64": "/w==", "value": None},
    ]
    file = tmp_path / "records.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = cli.json("produce", topic, "--json-lines", "--file", str(file))
    assert (report["acknowledged"], report["refused"]) == (2, 0)
    first = everything(cli, topic, "json")
    assert json.loads(first.splitlines()[0]) == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1700000000000,
        "timestamp_type": "CreateTime",
        "key": "k",
        "value": "v",
        "headers": [{"key": "a", "value": "1"}],
    }
    cli.output("produce", copy, "--json-lines", stdin=first)
    assert everything(cli, copy, "json").replace(copy, topic) == first


def test_bad_lines_are_named_and_the_others_written(cli: Cli) -> None:
    topic = new_topic(cli)
    big = "k:" + "x" * 1_100_000
    done = cli.run("produce", topic, "--key-separator", ":", stdin=f"a:1\nno separator\n{big}\nb:2\n")
    assert done.returncode == 1
    assert done.stdout == f"Produced 2 records to {topic}.\n"
    complaints = done.stderr.splitlines()
    assert complaints[0] == "line 2: no key separator ':'"
    assert complaints[1].startswith("line 3: ")
    assert "Message size too large" in complaints[1]
    assert complaints[2] == "Error: 2 of 4 lines were not acknowledged: 1 malformed, 1 refused"
    assert everything(cli, topic, "%k%s ") == "a1 b2 "


@OURS_AND_KAFKAS
def test_a_refusal_of_the_broker_is_a_lines_error(cli: Cli) -> None:
    topic = f"lines-{uuid.uuid4().hex[:8]}"
    cli.output("topic", "create", topic, "--partitions", "1", "--config", "cleanup.policy=compact")
    done = cli.run("produce", topic, stdin="no key\n")
    assert done.returncode == 1
    assert done.stdout == f"Produced 0 records to {topic}.\n"
    assert done.stderr.startswith("line 1: ")
    assert done.stderr.endswith("Error: 1 of 1 lines were not acknowledged: 1 refused\n")


@OURS_AND_KAFKAS
def test_starts(cli: Cli) -> None:
    topic = new_topic(cli)
    lines = [json.dumps({"value": str(number), "timestamp": 1700000000000 + number}) for number in range(10)]
    cli.output("produce", topic, "--json-lines", stdin="\n".join(lines))
    for start, values in (
        ("0", "0123456789"),
        ("7", "789"),
        ("10", ""),
        ("-2", "89"),
        ("-99", "0123456789"),
        ("latest", ""),
        ("@1700000000004", "456789"),
        ("@2023-11-14T22:13:20.006", "6789"),
        ("@2030-01-01", ""),
    ):
        assert consumed(cli, topic, "--offset", start, "--exit-at-end", "--format", "%s") == values, start
    assert consumed(cli, topic, "--from-beginning", "--max-messages", "3", "--format", "%s") == "012"
    of_one = ("--partition", "0", "--from-beginning", "--max-messages", "10", "--timeout-ms", "30000")
    assert consumed(cli, topic, *of_one, "--format", "%s") == "0123456789"
    assert consumed(cli, topic, "--offset", "latest", "--timeout-ms", "300", "--format", "%s") == ""


@pytest.mark.thorough
def test_refusals_are_one_line(cli: Cli) -> None:
    topic = new_topic(cli)
    for arguments, says in (
        (["produce", "no-such-topic"], "topic 'no-such-topic' does not exist, or ACLs hide it; create it with"),
        (["produce", topic, "--partition", "1"], "has no partition 1, only 0 to 0"),
        (["consume", topic, "--partition", "1"], "has no partition 1, only 0 to 0"),
        (["consume", topic, "--offset", "1"], "has no offset 1, only 0 to 0 (the end)"),
    ):
        assert says in cli.failure(*arguments, stdin="x\n")
    missing = cli.run("consume", topic, "--max-messages", "2", "--timeout-ms", "300")
    assert missing.returncode == 1
    assert "Error: received only 0 of 2 messages, then none for 300 ms" in missing.stderr


def test_consume_ends_when_its_output_is_closed(cli: Cli) -> None:
    topic = new_topic(cli)
    cli.output("produce", topic, stdin="line\n" * 20_000)
    with subprocess.Popen(cli.command("consume", topic, "--from-beginning"), **PIPES) as consumer:
        assert consumer.stdout.readline() == "line\n"
        consumer.stdout.close()
        assert consumer.wait(30) == 0
        assert "Traceback" not in consumer.stderr.read()


@OURS_AND_KAFKAS
def test_a_group_continues_at_its_committed_offsets(cli: Cli) -> None:
    """Also after Ctrl-C, which commits."""
    topic, group = new_topic(cli), f"group-{uuid.uuid4().hex[:8]}"
    cli.output("produce", topic, stdin="a\nb\nc\nd\n")
    options = ["--group", group, "--from-beginning", "--format", "%s"]
    assert consumed(cli, topic, *options, "--max-messages", "2") == "ab"
    assert lag_and_members(cli, group) == ([2], [])
    assert consumed(cli, topic, *options, "--exit-at-end") == "cd"
    assert consumed(cli, topic, *options, "--timeout-ms", "500") == ""
    cli.output("produce", topic, stdin="e\nf\n")
    with subprocess.Popen(cli.command("consume", topic, "--group", group), **PIPES) as consumer:
        assert [consumer.stdout.readline() for _ in range(2)] == ["e\n", "f\n"]
        consumer.send_signal(signal.SIGINT)
        _, said = consumer.communicate(timeout=30)
    assert (consumer.returncode, said) == (130, "Processed a total of 2 messages\n")
    assert lag_and_members(cli, group) == ([0], [])


def test_what_is_not_acknowledged_is_called_unknown(new_cluster: ClusterFactory) -> None:
    """Ctrl-C waits for the acknowledgements; a second one says how many lines may have been written."""
    cluster = new_cluster(brokers=1)
    cli = cli_of(cluster)
    topic = new_topic(cli)
    with subprocess.Popen(cli.command("produce", topic, "--verbose"), **PIPES) as producer:
        producer.stdin.write("first\n")
        producer.stdin.flush()
        assert producer.stderr.readline() == f"line 1: {topic}-0@0\n"
        cluster.pause(1)
        try:
            producer.stdin.write("second\nthird\n")
            producer.stdin.flush()
            eventually(lambda: unread_bytes(cluster.port(1)) > 0, "the lines have reached the paused broker's socket")
            producer.send_signal(signal.SIGINT)
            assert producer.stderr.readline().startswith("Waiting for 2 acknowledgements; Ctrl-C stops waiting.")
            producer.send_signal(signal.SIGINT)
            out, said = producer.communicate(timeout=30)
        finally:
            cluster.resume(1)
    assert producer.returncode == 130
    assert out == f"Produced 1 record to {topic}.\n"
    assert "Error: 2 of 3 lines were not acknowledged: 2 unknown (may have been written)" in said
    eventually(lambda: everything(cli, topic, "%s ").startswith("first "), "the first line is there")


def unread_bytes(port: int) -> int:
    """The bytes in the receive queues of the connections to a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if int(row[1].rpartition(":")[2], 16) == port)
