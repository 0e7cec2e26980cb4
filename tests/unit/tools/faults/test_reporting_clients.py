"""The load during faults, with a producer that stands in for librdkafka's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tools.faults import reporting_clients
from tools.faults.reporting_clients import Load
from tools.judge.reports import ACKED, FAILED, PRODUCED

Delivered = Callable[[Any, Any], None]


class Message:
    def __init__(self, key: bytes, partition: int, offset: int | None = None) -> None:
        self.key, self.partition, self.offset = lambda: key, lambda: partition, lambda: offset


class FakeProducer:
    """The first of them acknowledges ten records, and then ends with a fatal error. The others acknowledge everything."""

    made: list[FakeProducer]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.is_first = not self.made
        self.acknowledged = 0
        self._waiting: list[tuple[bytes, int, Delivered]] = []
        self._is_purged = False
        self.made.append(self)

    def produce(self, topic: str, value: bytes, key: bytes, *, partition: int, on_delivery: Delivered) -> None:
        self._waiting.append((key, partition, on_delivery))

    def poll(self, timeout: float) -> None:
        if self.is_first and self.acknowledged == 10 and len(self._waiting) == 5:
            raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "desynchronized", fatal=True))
        while self._waiting and not (self.is_first and self.acknowledged == 10):
            key, partition, delivered = self._waiting.pop(0)
            delivered(None, Message(key, partition, self.acknowledged))
            self.acknowledged += 1

    def purge(self) -> None:
        self._is_purged = True

    def flush(self, timeout: float) -> None:
        if self._is_purged:
            for key, partition, delivered in self._waiting:
                delivered(KafkaError(KafkaError._PURGE_QUEUE), Message(key, partition))
            self._waiting.clear()
        self.poll(0)


def test_after_a_fatal_error_the_load_continues_with_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unclean election ends an idempotent producer of librdkafka: it would never be answered again."""
    FakeProducer.made = []
    monkeypatch.setattr(reporting_clients, "Producer", FakeProducer)
    with Load("", "t", 3, settings={"enable.idempotence": True}) as under_way:
        under_way.wait_for_acks(100)
    events = Counter(report.event for report in under_way.reports)
    assert len(FakeProducer.made) == 2
    assert under_way.sent == events[PRODUCED] == events[ACKED] + 5
    assert events[FAILED] == len(under_way.failed) == 5
    assert all("desynchronized" in reason for reason in under_way.failed)
