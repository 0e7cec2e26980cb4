"""A client that invents a producer id for each batch does not fill the memory; others are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from broker.replication.appending.refused_batches import RefusedBatches
from broker.storage.producers import log_producers, producer_state
from broker.storage.producers.log_producers import LogProducers, to_shrink
from broker.storage.producers.producer_state import ProducerState
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, BatchHeader
from protocol.types import TopicPartition
from tests.support.refusals import refused

STEADY = 7
IN_TRANSACTION = 8


def header(producer_id: int, sequence: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, 0, 1000, 1000, producer_id, 0, sequence, 1)


def written(producers: int, first_id: int = 1000) -> ProducerState:
    state = ProducerState()
    for producer_id in range(first_id, first_id + producers):
        state.append(header(producer_id), state.end_offset)
    return state


def test_the_producers_that_wrote_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 50)
    monkeypatch.setattr(producer_state, "COMPARED", 8)
    state = ProducerState()
    state.append(header(IN_TRANSACTION, attributes=TRANSACTIONAL_BIT), 0)
    sequence = 0
    for number in range(5_000):
        state.append(header(1_000 + number), state.end_offset)
        if number % 10 == 0:
            batch = header(STEADY, sequence)
            assert state.check(batch) is None
            state.append(batch, state.end_offset)
            assert state.check(batch) is not None
            sequence += 1
    assert 50 - producer_state.COMPARED // 2 <= len(state.producers) <= 50
    assert {STEADY, IN_TRANSACTION} <= state.producers.keys()


def test_open_transactions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never dropped, so an unknown producer begins none beyond the limit."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    state = ProducerState()
    for number in range(3):
        state.append(header(number, attributes=TRANSACTIONAL_BIT), number)
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        state.check(header(9, attributes=TRANSACTIONAL_BIT))
    assert state.check(header(9)) is None
    assert state.check(header(2, 1, attributes=TRANSACTIONAL_BIT)) is None


def test_the_logs_with_most_producers_shrink_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_producers, "ALL_PRODUCERS_MAX", 1_000)
    monkeypatch.setattr(log_producers, "COPY_BATCHES", 1)
    monkeypatch.setattr(log_producers, "COPY_BATCHES_PER_PRODUCER", 0)
    no_disk: Any = None
    small, large = (LogProducers(no_disk, "d", written(count)) for count in (100, 400))
    assert list(to_shrink([small, large])) == []
    for number in range(3):
        large.note([header(5_000 + number)._replace(base_offset=400 + number)])
    assert large.size > 1_000
    for producers, count in to_shrink([small, large]):
        producers.shrink(count)
    assert (small.size, large.size) == (100, 201)
    assert large.state.producers.keys() == {*range(1_202, 1_400), 5_000, 5_001, 5_002}


def test_a_refused_batch_of_a_name_that_no_topic_has_is_not_remembered() -> None:
    refused = RefusedBatches()
    records = bytes(100)
    refused.note(TopicPartition("t" * 250, 0), records, 0.0, is_here=False)
    assert not refused
    refused.note(TopicPartition("t" * 249, 0), records, 0.0, is_here=False)
    assert refused
