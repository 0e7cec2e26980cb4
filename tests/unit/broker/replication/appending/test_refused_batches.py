"""Batches behind a refused batch of an idempotent producer: INV-17, INV-20."""

from __future__ import annotations

import pytest

from broker.replication.appending.refused_batches import GAP_S, PRODUCERS_MAX, REMEMBERED_S, RefusedBatches
from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch, parse_header
from protocol.types import TopicPartition

PRODUCER = 7
TP = TopicPartition("orders", 0)


def batch(sequence: int, *, epoch: int = 0, producer: int = PRODUCER) -> bytes:
    return build_batch([(None, b"v", (), 1)], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def log_with(*sequences: int, epoch: int = 0) -> ProducerState:
    state = ProducerState()
    for sequence in sequences:
        state.append(parse_header(batch(sequence, epoch=epoch)), state.end_offset)
    return state


def is_refused(refused: RefusedBatches, records: bytes, log: ProducerState, now_s: float = 0.0) -> bool:
    try:
        refused.check(TP, records, log, now_s)
    except KafkaError as error:
        return error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    return False


def is_early_batch(refused: RefusedBatches, records: bytes, log: ProducerState, now_s: float = 0.0) -> bool:
    try:
        refused.check_early(TP, records, log, now_s)
    except KafkaError as error:
        return error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    return False


def after(*sequences: int) -> RefusedBatches:
    """These were refused at second 0."""
    refused = RefusedBatches()
    for sequence in sequences:
        refused.note(TP, batch(sequence), 0.0, is_here=True)
    return refused


@pytest.mark.parametrize(
    ("in_the_log", "noted", "comes", "waits"),
    [
        ([4], [5], 6, True),
        ([4], [5, 6], 7, True),
        ([4], [6, 5], 6, True),
        ([], [5], 6, True),  # of a producer that the log does not know
        ([4], [5], 5, False),  # the one itself
        ([3, 4], [5], 4, False),  # one that is in the log
        ([4, 5], [5], 6, False),  # it came by another way
        ([4, 5], [5], 7, False),
        ([4, 5], [5, 6], 7, True),  # the first was there before, the second was not
        ([4, 5], [6, 5], 6, False),
        ([4, 5, 6], [5, 6], 7, False),
        ([3], [5], 6, True),  # the log was cut since: what is missing comes again too
        ([3], [5], 4, False),
        ([SEQUENCE_MAX], [0], 1, True),
        ([SEQUENCE_MAX - 1], [SEQUENCE_MAX], 0, True),
        ([SEQUENCE_MAX], [0], SEQUENCE_MAX, False),
    ],
)
def test_which_batches_wait(in_the_log: list[int], noted: list[int], comes: int, waits: bool) -> None:
    assert is_refused(after(*noted), batch(comes), log_with(*in_the_log)) is waits


def test_only_the_refused_batch_itself_ends_its_note() -> None:
    refused = after(5)
    for _ in range(3):
        assert is_refused(refused, batch(6), log_with(4))
    assert not is_refused(refused, batch(5), log_with(4))
    assert not refused


def test_each_refused_batch_is_waited_for_in_order() -> None:
    refused = after(7, 5, 6)
    for missing in (5, 6, 7):
        log = log_with(missing - 1)
        assert is_refused(refused, batch(missing + 1), log)
        assert not is_refused(refused, batch(missing), log)
    assert not refused


@pytest.mark.parametrize(("epoch", "waits"), [(0, True), (1, False)])
def test_a_new_producer_epoch_ends_the_note(epoch: int, waits: bool) -> None:
    assert is_refused(after(5), batch(6, epoch=epoch), log_with(4)) is waits


def test_a_refused_batch_of_a_new_producer_epoch_is_waited_for() -> None:
    refused = RefusedBatches()
    refused.note(TP, batch(0, epoch=1), 0.0, is_here=True)
    assert is_refused(refused, batch(1, epoch=1), log_with(4, epoch=0))
    assert not is_refused(refused, batch(1, epoch=1), log_with(0, epoch=2))


@pytest.mark.parametrize(("now_s", "waits"), [(REMEMBERED_S, True), (REMEMBERED_S + 1, False)])
def test_a_note_ends_after_a_minute(now_s: float, waits: bool) -> None:
    refused = after(5)
    assert is_refused(refused, batch(6), log_with(4), now_s) is waits
    assert bool(refused) is waits


def test_a_note_without_a_replica_is_for_a_few_seconds() -> None:
    refused = RefusedBatches()
    refused.note(TP, batch(5), 0.0, is_here=False)
    assert is_refused(refused, batch(6), ProducerState(), GAP_S)
    assert not is_refused(refused, batch(6), ProducerState(), GAP_S + 0.1)
    refused.note(TP, batch(5), 10.0, is_here=False)
    refused.note(TP, batch(7), 11.0 + GAP_S, is_here=False)
    assert not is_refused(refused, batch(6), ProducerState(), 11.0 + GAP_S), "the first is not waited for any more"


def test_notes_go_with_the_replica() -> None:
    refused = after(5)
    assert is_early_batch(refused, batch(6, producer=8), log_with(4), 0.0)
    other = TopicPartition("orders", 1)
    refused.note(other, batch(5), 0.0, is_here=True)
    refused.forget(TP)
    assert not is_refused(refused, batch(6), ProducerState())
    assert PRODUCER in refused.producers(other)
    refused.forget(other)
    assert not refused


def test_batches_that_wait_do_not_prolong_the_note() -> None:
    refused = after(5)
    refused.note(TP, batch(6), REMEMBERED_S, is_here=True)
    assert not is_refused(refused, batch(6), log_with(4), REMEMBERED_S + 1)


@pytest.mark.parametrize(
    ("in_the_log", "epoch", "comes", "is_early"),
    [
        ([4], 0, 6, True),
        ([4], 0, 5, False),  # nothing is missing
        ([3, 4], 0, 2, False),  # too late, not too early
        ([], 0, 6, True),  # the log does not know the producer: 0 may still come
        ([], 0, 0, False),
        ([4], 1, 6, True),  # an epoch starts at sequence 0
        ([4], 1, 0, False),
        ([4], -1, 6, False),  # of an older epoch
        ([SEQUENCE_MAX], 0, 1, True),
    ],
)
def test_a_batch_that_leaves_a_gap_may_be_early(in_the_log: list[int], epoch: int, comes: int, is_early: bool) -> None:
    assert is_early_batch(RefusedBatches(), batch(comes, epoch=epoch), log_with(*in_the_log)) is is_early


def test_a_gap_is_waited_for_once_and_not_for_long() -> None:
    refused = RefusedBatches()
    assert is_early_batch(refused, batch(6), log_with(4), 0.0)
    assert is_early_batch(refused, batch(7), log_with(4), GAP_S)
    assert not is_early_batch(refused, batch(6), log_with(4), GAP_S + 0.1)
    assert is_early_batch(refused, batch(9), log_with(5, 6, 7), GAP_S + 0.2), "another one is missing"


def test_other_producers_and_partitions_do_not_wait() -> None:
    refused = after(5)
    assert not is_refused(refused, batch(6, producer=8), ProducerState())
    assert not is_refused(refused, batch(6, producer=-1), ProducerState())
    assert not is_refused(refused, b"", ProducerState())
    refused.check(TopicPartition("orders", 1), batch(6), log_with(4), 0.0)
    assert refused


def test_batches_without_a_sequence_are_not_noted_and_notes_are_limited() -> None:
    refused = RefusedBatches()
    for records in (b"", batch(-1), batch(-1, producer=-1)):
        refused.note(TP, records, 0.0, is_here=True)
    assert not refused
    for producer in range(PRODUCERS_MAX + 1):
        refused.note(TP, batch(0, producer=producer), 0.0, is_here=True)
    assert is_refused(refused, batch(1, producer=PRODUCERS_MAX - 1), ProducerState())
    assert not is_refused(refused, batch(1, producer=PRODUCERS_MAX), ProducerState())
    other = TopicPartition("orders", 1)
    refused.note(other, batch(0), 1.0, is_here=True)
    assert PRODUCER not in refused.producers(other)
    refused.note(other, batch(0), REMEMBERED_S + 1, is_here=True)
    assert PRODUCER in refused.producers(other), "there is room when the others are old"
    assert not is_refused(refused, batch(1), ProducerState(), REMEMBERED_S + 1)
