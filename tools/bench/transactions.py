"""`python -m tools.bench.transactions`: what a transaction over ten partitions costs its producer, compared between clusters.

    python -m tools.bench.transactions --cluster ottla=127.0.0.1:9092 --cluster kafka=127.0.0.1:39092

A transaction writes one record to each of ten partitions, which have a replica on three brokers each, and commits. The clusters are
under load in turns, never together. Each round has the other order than the round before, so that a machine that gets slower or
faster counts for all. A warm-up, which a JVM needs, is not counted. Each figure has the load average of the last minute beside it.

There are three clients. `librdkafka` is what most producers use; `java` is Kafka's own, and needs `make kafka`. `raw` sends the requests
itself, and shows the parts of the time: adding the partitions, producing, and ending. Like both others, it waits 20 ms and asks again if
the coordinator answers CONCURRENT_TRANSACTIONS, because the previous transaction is not complete.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import uvloop
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.network_client import Address, NetworkClient
from tools.bench.bench_commands import Sizes
from tools.bench.real_kafka.jars import fetched_jars
from tools.cluster import ownership
from tools.cluster.java import find_java
from tools.cluster.tables import aligned
from tools.numbers import FloatRange, IntRange

TOPIC = "transactions-bench"
PARTITIONS, REPLICAS = 10, 3
VALUE = bytes(100)
TIMEOUT_S = 30.0
CLIENT_ID = "bench"
ACKS_ALL = -1
BUSY_RETRY_S = 0.02
"""The pause of Kafka's producers after CONCURRENT_TRANSACTIONS for the first partitions of a transaction."""
COORDINATOR_RETRY_S = 0.1
FIND_VERSION, INIT_VERSION, ADD_VERSION, PRODUCE_VERSION, END_VERSION = 3, 4, 3, 9, 3
LOADING = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


@dataclass
class Totals:
    """Milliseconds of each transaction, and of its parts; `seconds` is how long the producers were busy."""

    whole: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    busy: int = 0
    """Answers CONCURRENT_TRANSACTIONS, after which the client had to wait."""
    seconds: float = 0.0
    loads: list[float] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.whole += other.whole
        for name, times in other.parts.items():
            self.parts.setdefault(name, []).extend(times)
        self.busy += other.busy
        self.seconds += other.seconds
        self.loads += other.loads


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


# -- librdkafka -------------------------------------------------------------------------------------------------------


class RdkafkaLoad:
    """Producers of librdkafka, each in a thread of its own."""

    def __init__(self, address: str, producers: int, run: str) -> None:
        settings = {"bootstrap.servers": address, "linger.ms": 0, "log_level": 2}
        self._producers = [
            Producer({**settings, "transactional.id": f"{run}-{producers}-{number}"}) for number in range(producers)
        ]
        self._pool = ThreadPoolExecutor(producers)
        list(self._pool.map(lambda producer: producer.init_transactions(TIMEOUT_S), self._producers))

    def run(self, seconds: float) -> Totals:
        until = time.perf_counter() + seconds
        began = time.perf_counter()
        totals = Totals()
        for times in self._pool.map(lambda producer: _rdkafka_transactions(producer, until), self._producers):
            totals.whole += times
        totals.seconds = time.perf_counter() - began
        return totals

    def close(self) -> None:
        self._pool.shutdown()


def _rdkafka_transactions(producer: Producer, until: float) -> list[float]:
    times = []
    while (began := time.perf_counter()) < until:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, VALUE, partition=partition)
        producer.commit_transaction(TIMEOUT_S)
        times.append((time.perf_counter() - began) * 1000)
    return times


# -- Kafka's client ---------------------------------------------------------------------------------------------------


class JavaLoad:
    """Producers of Kafka's own client, each in a thread of one JVM (`TransactionLoad.java`).

    A line with a number of seconds makes it run; it answers with one line for each transaction, its microseconds, and an empty line.
    """

    def __init__(self, address: str, producers: int, run: str) -> None:
        jars = fetched_jars()
        if jars is None:
            raise click.ClickException("the client java needs the jars of Kafka: run `make kafka`")
        self._process = ownership.start(
            lambda preexec: subprocess.Popen(
                [
                    find_java(),
                    "-cp",
                    jars.class_path,
                    str(Path(__file__).with_name("TransactionLoad.java")),
                    address,
                    TOPIC,
                    f"{run}-{producers}",
                    str(producers),
                    str(PARTITIONS),
                    str(len(VALUE)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                preexec_fn=preexec,
            )
        )
        self._expect_end([])

    def run(self, seconds: float) -> Totals:
        totals = Totals()
        began = time.perf_counter()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        self._process.stdin.flush()
        self._expect_end(totals.whole)
        totals.seconds = time.perf_counter() - began
        return totals

    def _expect_end(self, times: list[float]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.strip():
                return
            times.append(int(line) / 1000)
        raise click.ClickException("Kafka's client ended: does the cluster answer?")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- raw requests -----------------------------------------------------------------------------------------------------


class RawLoad:
    """Producers that send the requests themselves, all in one loop."""

    def __init__(self, address: str, producers: int, run: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        host, _, port = address.rpartition(":")
        found = AdminClient({"bootstrap.servers": address}).list_topics(TOPIC, timeout=TIMEOUT_S)
        brokers = {number: (broker.host, broker.port) for number, broker in found.brokers.items()}
        led: dict[Address, list[int]] = {}
        for number, partition in found.topics[TOPIC].partitions.items():
            led.setdefault(brokers[partition.leader], []).append(number)
        self._producers = [
            RawProducer((host, int(port)), led, f"{run}-{producers}-{number}") for number in range(producers)
        ]
        self._runner.run(self._init())

    async def _init(self) -> None:
        await asyncio.gather(*(producer.init() for producer in self._producers))

    def run(self, seconds: float) -> Totals:
        return self._runner.run(self._run(seconds))

    async def _run(self, seconds: float) -> Totals:
        totals = Totals()
        began = time.perf_counter()
        await asyncio.gather(*(producer.run(began + seconds, totals) for producer in self._producers))
        totals.seconds = time.perf_counter() - began
        return totals

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        for producer in self._producers:
            producer.close()


class RawProducer:
    """One transactional id, with a connection to each broker. `led`: broker -> the partitions that it leads."""

    def __init__(self, bootstrap: Address, led: Mapping[Address, Sequence[int]], transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._led = led
        self._transactional_id = transactional_id
        self._network = NetworkClient(time, request_timeout_ms=int(TIMEOUT_S * 1000), random=random.random)
        self._coordinator = bootstrap
        self._producer_id = self._producer_epoch = -1
        self._sequence = 0

    async def init(self) -> None:
        """Finds the coordinator and gets a producer id. Waits while the coordinator is elected or loads."""
        while True:
            found = await self._ask(
                self._bootstrap, ApiKey.FIND_COORDINATOR, FIND_VERSION, {"key": self._transactional_id, "key_type": 1}
            )
            if ErrorCode(int(found.error_code)) is ErrorCode.NONE:
                self._coordinator = str(found.host), int(found.port)
                answer = await self._ask(
                    self._coordinator,
                    ApiKey.INIT_PRODUCER_ID,
                    INIT_VERSION,
                    {
                        "transactional_id": self._transactional_id,
                        "transaction_timeout": 60_000,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    },
                )
                error = ErrorCode(int(answer.error_code))
                if error is ErrorCode.NONE:
                    self._producer_id, self._producer_epoch = int(answer.producer_id), int(answer.producer_epoch)
                    return
                if error not in (*LOADING, ErrorCode.CONCURRENT_TRANSACTIONS):
                    raise click.ClickException(f"InitProducerId: {error.name}")
            await asyncio.sleep(COORDINATOR_RETRY_S)

    async def run(self, until: float, totals: Totals) -> None:
        while (began := time.perf_counter()) < until:
            totals.busy += await self._add_partitions()
            added = time.perf_counter()
            await self._produce()
            produced = time.perf_counter()
            await self._end()
            ended = time.perf_counter()
            totals.whole.append((ended - began) * 1000)
            for name, seconds in (("add", added - began), ("produce", produced - added), ("end", ended - produced)):
                totals.parts.setdefault(name, []).append(seconds * 1000)

    async def _add_partitions(self) -> int:
        """How often the previous transaction was not complete yet."""
        busy = 0
        body = {
            "v3_and_below_transactional_id": self._transactional_id,
            "v3_and_below_producer_id": self._producer_id,
            "v3_and_below_producer_epoch": self._producer_epoch,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": list(range(PARTITIONS))}],
        }
        while True:
            answer = await self._ask(self._coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, body)
            errors = {
                ErrorCode(int(row.partition_error_code))
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            if errors == {ErrorCode.NONE}:
                return busy
            if errors != {ErrorCode.CONCURRENT_TRANSACTIONS}:
                raise click.ClickException(f"AddPartitionsToTxn: {', '.join(error.name for error in errors)}")
            busy += 1
            await asyncio.sleep(BUSY_RETRY_S)

    async def _produce(self) -> None:
        batch = build_batch(
            [(None, VALUE, (), int(time.time() * 1000))],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequence,
            attributes=TRANSACTIONAL_BIT,
        )
        self._sequence += 1
        await asyncio.gather(*(self._produce_to(leader, partitions, batch) for leader, partitions in self._led.items()))

    async def _produce_to(self, leader: Address, partitions: Sequence[int], batch: bytes) -> None:
        data = [{"index": number, "records": batch} for number in partitions]
        body = {
            "transactional_id": self._transactional_id,
            "acks": ACKS_ALL,
            "timeout": int(TIMEOUT_S * 1000),
            "topic_data": [{"name": TOPIC, "partition_data": data}],
        }
        answer = await self._ask(leader, ApiKey.PRODUCE, PRODUCE_VERSION, body)
        for topic in answer.responses:
            for row in topic.partition_responses:
                _check("Produce", row.error_code)

    async def _end(self) -> None:
        body = {
            "transactional_id": self._transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._producer_epoch,
            "committed": True,
        }
        _check("EndTxn", (await self._ask(self._coordinator, ApiKey.END_TXN, END_VERSION, body)).error_code)

    async def _ask(self, node: Address, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        frame = await self._network.send(
            node, lambda correlation_id: [messages.encode_request(api_key, version, correlation_id, CLIENT_ID, body)]
        )
        return messages.decode_response(api_key, version, frame)[1]

    def close(self) -> None:
        self._network.close()


def _check(request: str, code: int) -> None:
    error = ErrorCode(int(code))
    if error is not ErrorCode.NONE:
        raise click.ClickException(f"{request}: {error.name}")


# -- the rounds -------------------------------------------------------------------------------------------------------

Load = RdkafkaLoad | JavaLoad | RawLoad
CLIENTS: dict[str, Callable[[str, int, str], Load]] = {"librdkafka": RdkafkaLoad, "java": JavaLoad, "raw": RawLoad}


def measure(loads: Mapping[str, Load], rounds: int, seconds: float, warm_up_s: float) -> dict[str, Totals]:
    """Cluster -> what was measured in all rounds."""
    found = {name: Totals() for name in loads}
    for load in loads.values():
        load.run(warm_up_s)
    for number in range(rounds):
        names = list(loads) if number % 2 == 0 else list(loads)[::-1]
        for name in names:
            load_average = os.getloadavg()[0]
            totals = loads[name].run(seconds)
            totals.loads.append(load_average)
            found[name].add(totals)
    return found


def rows(client: str, producers: int, found: Mapping[str, Totals]) -> list[list[str]]:
    """A row for each cluster."""
    return [
        [
            client,
            str(producers),
            name,
            f"{statistics.median(totals.whole):.2f} ms",
            f"{percentile(totals.whole, 0.99):.2f} ms",
            f"{len(totals.whole) / totals.seconds:.1f}",
            ", ".join(f"{part} {statistics.median(times):.2f}" for part, times in totals.parts.items()) or "-",
            f"{totals.busy / len(totals.whole):.2f}" if totals.parts else "-",
            f"{min(totals.loads):.2f} to {max(totals.loads):.2f}",
        ]
        for name, totals in found.items()
    ]


HEAD = ["CLIENT", "PRODUCERS", "CLUSTER", "MEDIAN", "P99", "PER SECOND", "PARTS, MEDIAN MS", "BUSY", "LOAD AVERAGE"]


def make_topic(address: str) -> None:
    """Keeps a topic that exists."""
    admin = AdminClient({"bootstrap.servers": address})
    if TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, REPLICAS)])[TOPIC].result(TIMEOUT_S)
    until = time.monotonic() + TIMEOUT_S
    while True:
        partitions = admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions.values()
        if len(partitions) == PARTITIONS and all(len(found.isrs) == REPLICAS for found in partitions):
            return
        if time.monotonic() > until:
            raise click.ClickException(
                f"{address}: {TOPIC} needs {PARTITIONS} partitions with {REPLICAS} replicas in sync"
            )
        time.sleep(COORDINATOR_RETRY_S)


def cluster_of(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal()):
        raise click.UsageError(f"{text}: expected NAME=HOST:PORT")
    return name, address


@click.command()
@click.option(
    "--cluster", "clusters", multiple=True, required=True, metavar="NAME=HOST:PORT", help="Give it for each cluster."
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    type=click.Choice(list(CLIENTS)),
    help="Default: all; java after `make kafka`.",
)
@click.option("--producers", type=Sizes(), default="1,4,16", show_default=True, help="Producers at a time.")
@click.option("--rounds", type=IntRange(1), default=4, show_default=True, help="Turns of each cluster.")
@click.option("--seconds", type=FloatRange(0.1), default=3.0, show_default=True, help="Length of a turn.")
@click.option("--warm-up", type=FloatRange(0.1), default=5.0, show_default=True, help="Seconds before the first round.")
def main(
    clusters: Sequence[str],
    clients: Sequence[str],
    producers: Sequence[int],
    rounds: int,
    seconds: float,
    warm_up: float,
) -> None:
    """Run transactions on each cluster in turns, and compare how long they take."""
    addresses = dict(map(cluster_of, clusters))
    run = f"bench-{os.getpid()}"
    ownership.own_servers()
    table = [HEAD]
    for address in addresses.values():
        make_topic(address)
    for client in clients or [name for name in CLIENTS if name != "java" or fetched_jars()]:
        for count in producers:
            loads: dict[str, Load] = {}
            try:
                for name, address in addresses.items():
                    loads[name] = CLIENTS[client](address, count, f"{run}-{client}")
                table += rows(client, count, measure(loads, rounds, seconds, warm_up))
            except KafkaException as error:
                raise click.ClickException(str(error)) from None
            finally:
                for load in loads.values():
                    load.close()
            click.echo("\n".join(aligned([HEAD, *table[-len(addresses) :]])), err=True)
    click.echo("\n".join(aligned(table)))


if __name__ == "__main__":
    main()
