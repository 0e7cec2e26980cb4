"""The load of `tools.faults` as tests use it: an impatient client, and assertions instead of verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.invariants import ZooKeeperView, assert_healed
from tools.cluster.local_cluster import LocalCluster
from tools.faults.reporting_clients import PROMPT, Load, log_of, read_everything, watermarks
from tools.faults.verdict import Journal, Verdict

__all__ = ["BackgroundProducer", "assert_nothing_lost", "assert_once_and_in_order", "read_everything", "watermarks"]


class BackgroundProducer(Load):
    """`idempotent`: each record once, in order. `config`: more settings of librdkafka, with `_` for `.`."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        padding: bytes = b"",
        *,
        idempotent: bool = False,
        records_per_s: float | None = None,
        **config: Any,
    ) -> None:
        settings = {
            **PROMPT,
            "retry.backoff.max.ms": 200,
            "enable.idempotence": idempotent,
            "linger.ms": 20,
            "message.timeout.ms": 60000,
        } | {key.replace("_", "."): value for key, value in config.items()}
        super().__init__(bootstrap_servers, topic, partitions, padding, records_per_s=records_per_s, settings=settings)
        self.acknowledged = self.journal

    def longest_gap_s(self) -> float:
        """The longest time without an acknowledgement, for printing (never asserted)."""
        return self.journal.outage_s()


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
    log = log_of(read_everything(cluster.bootstrap_servers, topic, partitions))
    verdict = Verdict.of(producer.journal, log)
    print(f"\n  {verdict}")
    assert verdict.problems(once_and_in_order=idempotent) == []


def assert_once_and_in_order(acknowledged: Journal, records: list[Any]) -> None:
    """INV-20, for an idempotent producer."""
    assert Verdict.of(acknowledged, log_of(records)).problems(once_and_in_order=True) == []


def assert_nothing_lost(acknowledged: Journal, records: list[Any]) -> int:
    """Returns how many records are there twice."""
    verdict = Verdict.of(acknowledged, log_of(records))
    assert not verdict.lost, verdict.problems(once_and_in_order=False)
    return verdict.doubled
