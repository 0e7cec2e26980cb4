"""The load of `tools.faults` as tests use it: an impatient client, and assertions on its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.support.invariants import ZooKeeperView, assert_healed
from tools.cluster.local_cluster import LocalCluster
from tools.faults.reporting_clients import PROMPT, READER, Load
from tools.judge.kinds import DUPLICATES, REFUSED, REORDERED, UNANSWERED
from tools.judge.lines import lines_of
from tools.judge.logs import Logs
from tools.judge.reports import ACKED, Report
from tools.judge.verdict import CLEAN, Client, Fault, Verdict, conclude
from tools.verify.reading import read_logs, read_positions

READ_TIMEOUT_S = 60.0
UNPRODUCED = (REFUSED, UNANSWERED)
"""A load of a test must not have such findings, unless they are allowed."""


class BackgroundProducer(Load):
    """`idempotent`: each record once, in order. `config`: more settings of librdkafka, with `_` for `.`."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        padding: bytes = b"",
        *,
        name: str = "record",
        idempotent: bool = False,
        records_per_s: float | None = None,
        began: float = 0.0,
        **config: Any,
    ) -> None:
        settings = {
            **PROMPT,
            "retry.backoff.max.ms": 200,
            "enable.idempotence": idempotent,
            "linger.ms": 20,
            "message.timeout.ms": 60000,
        } | {key.replace("_", "."): value for key, value in config.items()}
        self.idempotent = idempotent
        super().__init__(
            bootstrap_servers,
            topic,
            partitions,
            padding,
            name=name,
            records_per_s=records_per_s,
            began=began,
            settings=settings,
        )


Ids = Mapping[tuple[int, int], str]
"""(partition, offset) -> id of the record, of those that are in the log and those that were acknowledged."""


def client_of(
    load: Load, end: float, read: Callable[[Ids], Sequence[Report]] = lambda _: (), *, is_finished: bool = False
) -> tuple[Client, Logs]:
    """What a load and its readers reported, judged by what the cluster holds now. `read`: what the readers reported.

    `is_finished`: the readers must have read everything. Fails if something cannot be read back.
    """
    settings = {"bootstrap.servers": load.bootstrap_servers}
    logs = read_logs(settings, load.reports, {}, load.id_of)
    assert all(log.is_whole for log in logs.values()), f"{load.topic} was not read to its end"
    ids = {
        (report.partition or 0, report.offset): report.id
        for report in load.reports
        if report.event == ACKED and report.offset is not None
    }
    ids |= {(partition, at): id_ for (_, partition), log in logs.items() for at, id_ in log.ids.items()}
    reports = [*load.reports, *read(ids)]
    positions, incomplete = read_positions(settings, reports)
    assert incomplete == []
    return Client.of(f"the load of {load.topic}", reports, logs, positions, end, is_finished=is_finished), logs


def assert_clean(
    clients: Sequence[Client],
    faults: Sequence[Fault] = (),
    *,
    allowed: Collection[str] = (),
    end: float = 0.0,
) -> Verdict:
    """Fails with the lines of the verdict, or if acknowledged records are below the log start."""
    forbidden = [kind for kind in UNPRODUCED if kind not in allowed]
    verdict = conclude(end, clients, faults, (), allowed=allowed, forbidden=forbidden)
    assert verdict.exit_code == CLEAN, "\n".join(lines_of(verdict))
    assert not any(client.judged.expired for client in clients), verdict.notes
    return verdict


def assert_all_read_back(producer: BackgroundProducer, *, allowed: Collection[str] = ()) -> Verdict:
    """No record was refused, and every acknowledged one is there; of an idempotent producer once and in order (INV-20)."""
    producer.stop()
    client, _ = client_of(producer, time.monotonic())
    return assert_clean([client], allowed=allowed if producer.idempotent else (*allowed, DUPLICATES, REORDERED))


def read_everything(
    bootstrap_servers: str, topic: str, partitions: int, isolation: str = "read_committed", **config: Any
) -> list[Any]:
    """What such a reader gets from the log start to the end that it is told: the last stable offset, or the high watermark."""
    settings = {"auto.offset.reset": "error", "enable.partition.eof": True, "isolation.level": isolation}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **READER, **PROMPT, **settings})
    found: list[Any] = []
    unread = set(range(partitions))
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
        while unread:
            assert time.monotonic() < deadline, f"{topic} was not read to its end: partitions {unread}"
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
    finally:
        consumer.close()
    return found


def summary(verdict: Verdict) -> str:
    """For printing: `1,204 acked, 3 duplicates; the longest outage: 0.31 s of t-0`."""
    found = [f"{client.counts()['acked']:,} acked" for client in verdict.clients]
    found += [f"{each.count:,} {each.kind}" for each in verdict.judgements]
    outages = sorted(longest_outages(verdict).items(), key=lambda row: -row[1])[:1]
    longest = [f"; the longest outage: {seconds:.2f} s of {name}" for name, seconds in outages]
    return "".join([", ".join(found), *longest])


def longest_outages(verdict: Verdict) -> dict[str, float]:
    """Partition, such as `t-0` -> its longest outage, in seconds."""
    found: dict[str, float] = {}
    for client in verdict.clients:
        for outage in client.outages:
            found[outage.name] = max(outage.seconds, found.get(outage.name, 0.0))
    return found


@contextmanager
def under_load(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, partitions: int, *, few: int = 200, idempotent: bool = False
) -> Iterator[BackgroundProducer]:
    """Produces before, during and after the block. At the end the topic is healed, and no acknowledged record is lost."""
    with BackgroundProducer(cluster.bootstrap_servers, topic, partitions, idempotent=idempotent) as producer:
        producer.wait_for_acks(few)
        yield producer
        producer.wait_for_acks(few)
    assert_healed(cluster, zk, topic)
    print(f"\n  {summary(assert_all_read_back(producer))}")
