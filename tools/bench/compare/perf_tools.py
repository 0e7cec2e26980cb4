"""Kafka's own ProducerPerformance and ConsumerPerformance, from its jars, and what they print."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from tools.bench.compare.rows import MIB
from tools.bench.real_kafka.jars import KafkaJars
from tools.cluster import ownership
from tools.cluster.processes import ClusterError

LINGER_MS = 5
TIMEOUT_S = 300
HEAP = "-Xmx512M"
"""As Kafka's scripts start them."""
PRODUCED = re.compile(
    r"(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .* max latency, "
    r"\d+ ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, \d+ ms 99\.9th"
)
CONSUMED_COLUMNS = 10


@dataclass(frozen=True, slots=True)
class Produced:
    records: int
    records_per_s: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Consumed:
    """`bytes_per_s` is that of the fetches: it leaves out how long the group took to assign the partitions."""

    bytes: float
    bytes_per_s: float


def producer_performance(
    jars: KafkaJars, bootstrap_servers: str, topic: str, records: int, record_bytes: int
) -> Produced:
    """Runs it with acks=all. Raises ClusterError."""
    output = _run(
        jars, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", str(record_bytes), "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={bootstrap_servers}", "acks=all", f"linger.ms={LINGER_MS}",
    )  # fmt: skip
    return read_produced(output)


def consumer_performance(jars: KafkaJars, bootstrap_servers: str, topic: str, records: int) -> Consumed:
    """Reads `records` records from the start of the topic. Raises ClusterError."""
    output = _run(
        jars, "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--messages", str(records),
        "--bootstrap-server", bootstrap_servers, "--timeout", "60000",
    )  # fmt: skip
    return read_consumed(output)


def read_produced(output: str) -> Produced:
    """The last line of ProducerPerformance is about the whole run. Raises ClusterError if there is none."""
    for line in reversed(output.splitlines()):
        match = PRODUCED.match(line)
        if match:
            return Produced(int(match["records"]), float(match["rate"]), float(match["p99"]))
    raise ClusterError(f"ProducerPerformance printed no result: {_last_line(output)}")


def read_consumed(output: str) -> Consumed:
    """ConsumerPerformance prints a line of names, then one of values. Raises ClusterError if they are not there."""
    lines = [line.split(", ") for line in output.splitlines() if line.count(", ") == CONSUMED_COLUMNS - 1]
    if len(lines) < 2:
        raise ClusterError(f"ConsumerPerformance printed no result: {_last_line(output)}")
    values = dict(zip(lines[0], lines[-1], strict=True))
    return Consumed(float(values["data.consumed.in.MB"]) * MIB, float(values["fetch.MB.sec"]) * MIB)


def _run(jars: KafkaJars, *arguments: str) -> str:
    """Both outputs."""
    process = ownership.start(
        jars.command(*arguments, options=(HEAP,)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{arguments[0]} has not ended after {TIMEOUT_S} s") from None
    finally:
        process.kill()
        process.wait()
    text: str = output.decode(errors="replace")
    if process.returncode:
        raise ClusterError(f"{arguments[0]} failed: {_last_line(text)}")
    return text


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
