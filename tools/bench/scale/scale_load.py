"""`python -m tools.bench.scale.scale_load`: the load of `ottla bench scale`, in its own process so that the bench does not disturb it.

It reads one command per line from standard input and answers each with a line of JSON:

    steady TOPIC,...     writes to all partitions of the topics in turn, until the end; answers when each has acknowledged a record
    since SECONDS        latencies of the steady records sent since then (monotonic seconds): {"TOPIC": [seconds, ...]}
    ready TOPIC,...      creates the client for the next `each` and writes with it once, so that it knows all leaders
    each TOPIC,...       writes one record to each partition of the topics: {"all_s": seconds until all were acknowledged, ...}

The process ends at the end of standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import click
from confluent_kafka import Producer

RECORDS_PER_S = 300
TIMEOUT_S = 120.0
POLL_S = 0.001
VALUE = b"v" * 200
STEADY = {"acks": "all", "linger.ms": 0, "log_level": 0, "enable.idempotence": True}


class Steady:
    """Writes records at a fixed rate, with acks=all. A late answer does not delay later records, so stalls are visible.

    Each topic has its own client, because a request to a dead leader delays everything else on its client's connection.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        producers = {topic: Producer({"bootstrap.servers": bootstrap_servers, **STEADY}) for topic in topics}
        self._producers = list(producers.values())
        self._places = [
            (producer, topic, partition)
            for topic, producer in producers.items()
            for partition in producer.list_topics(topic, timeout=30).topics[topic].partitions
        ]
        self._lock = threading.Lock()
        self._answered: list[tuple[float, float, str]] = []
        self._waiting: dict[int, tuple[float, str]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failures = 0
        self._thread.start()

    def wait_for_each_partition(self) -> None:
        while len(self.since(0.0)) == 0 or self._sent < 2 * len(self._places) or self._waiting:
            time.sleep(0.01)

    def since(self, begin: float) -> dict[str, list[float]]:
        """Seconds from sending to the answer, by topic. An unanswered record counts with its age."""
        found: dict[str, list[float]] = {}
        now = time.monotonic()
        with self._lock:
            rows = [row for row in self._answered if row[0] >= begin]
            rows += [(sent, now, topic) for sent, topic in self._waiting.values() if sent >= begin]
        for sent, answered, topic in rows:
            found.setdefault(topic, []).append(answered - sent)
        return found

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()

    _sent = 0

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stopping.is_set():
            producer, topic, partition = self._places[self._sent % len(self._places)]
            number, sent = self._sent, time.monotonic()
            with self._lock:
                self._waiting[number] = (sent, topic)
            producer.produce(
                topic, VALUE, partition=partition, on_delivery=lambda error, _, n=number: self._report(n, error)
            )
            self._sent += 1
            self._poll()
            while (ahead := begin + self._sent / RECORDS_PER_S - time.monotonic()) > 0:
                # `poll` cannot wait here: it waits for whole milliseconds and for one client only.
                time.sleep(min(ahead, POLL_S))
                self._poll()
        for client in self._producers:
            client.flush(TIMEOUT_S)

    def _poll(self) -> None:
        for client in self._producers:
            client.poll(0)

    def _report(self, number: int, error: Any) -> None:
        now = time.monotonic()
        with self._lock:
            sent, topic = self._waiting.pop(number)
            self._answered.append((sent, now, topic))
            self.failures += error is not None


class EachPartition:
    """Writes one record to each partition. Learns all partitions before, so that `write` only writes.

    Use it for one round only: librdkafka scans all known partitions a thousand times per second, and ten thousand take a whole core.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        settings = {"acks": "all", "linger.ms": 5, "log_level": 0, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 50,
                **settings,
            }
        )
        self._partitions = [
            (topic, partition)
            for topic in topics
            for partition in self._producer.list_topics(topic, timeout=60).topics[topic].partitions
        ]

    def write(self) -> dict[str, Any]:
        """Returns {"all_s", "failed", "why"}."""
        begin = time.monotonic()
        times: list[float] = []
        failures: list[str] = []

        def report(error: Any, _: Any) -> None:
            if error is None:
                times.append(time.monotonic() - begin)
            else:
                failures.append(str(error))

        for topic, partition in self._partitions:
            self._producer.produce(topic, VALUE, partition=partition, on_delivery=report)
            self._producer.poll(0)
        self._producer.flush(TIMEOUT_S)
        return {"all_s": max(times, default=0.0), "failed": len(failures), "why": failures[:1]}


@click.command()
@click.argument("bootstrap_servers")
def main(bootstrap_servers: str) -> None:
    """Run the commands from standard input; the module's docstring lists them."""
    steady: Steady | None = None
    each: EachPartition | None = None
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        answer: Any = None
        if command == "steady":
            steady = Steady(bootstrap_servers, argument.split(","))
            steady.wait_for_each_partition()
        elif command == "since":
            answer = steady.since(float(argument)) if steady is not None else {}
        elif command == "ready":
            each = EachPartition(bootstrap_servers, argument.split(","))
            answer = each.write()
        elif command == "each":
            answer = (each or EachPartition(bootstrap_servers, argument.split(","))).write()
            each = None
        click.echo(json.dumps(answer))
    if steady is not None:
        steady.end()


if __name__ == "__main__":
    main()
