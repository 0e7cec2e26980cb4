"""How a leader checks the batches of idempotent producers: LOG-5, INV-20, BUG-11, BUG-24."""

from __future__ import annotations

import contextlib
import copy
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.producers.producer_state import (
    BATCHES_KEPT,
    SEQUENCE_MAX,
    BatchMetadata,
    Duplicate,
    EndedTransaction,
    ProducerState,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.control_records import Marker
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tests.support.refusals import refused

PRODUCER = 4711


def header(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    offset: int = 0,
    timestamp: int = 1000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


def write(state: ProducerState, batch: BatchHeader) -> int:
    """Checks and appends a batch, as a leader does, and returns its first offset."""
    offset = state.end_offset
    if batch.base_sequence >= 0:
        assert state.check(batch) is None
    state.append(batch, offset)
    return offset


@pytest.fixture
def state() -> ProducerState:
    return ProducerState()


@pytest.mark.parametrize("sequence", [0, 1, 500, SEQUENCE_MAX])
def test_an_unknown_producer_may_start_at_any_sequence(sequence: int) -> None:
    """Kafka since 2.5 (KIP-360): its state may have expired, or its records been deleted."""
    state = ProducerState(100)
    write(state, header(sequence))
    assert state.producers[PRODUCER].batches == [BatchMetadata(sequence, 100, 0, 1000)]


@pytest.mark.parametrize(
    ("epoch", "sequence", "expected"),
    [
        (3, 10, None),
        (3, 11, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # a gap
        (3, 9, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # inside of what is there, and no batch of its own
        (3, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (4, 0, None),  # a new epoch begins at 0
        (4, 10, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (9, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (9, 0, None),  # epochs may be left out
        (2, 10, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_may_follow_sequence_9_of_epoch_3(
    state: ProducerState, epoch: int, sequence: int, expected: ErrorCode | None
) -> None:
    """INV-20."""
    write(state, header(0, 7, epoch=3))
    write(state, header(7, 3, epoch=3))
    if expected is None:
        assert write(state, header(sequence, epoch=epoch)) == 10
    else:
        with refused(expected):
            state.check(header(sequence, epoch=epoch))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        *((header(10 * n, 10), Duplicate(1000 + 10 * n, 1009 + 10 * n, 5000 + n)) for n in range(1, 6)),
        (header(0, 10), None),
        (header(20, 9), None),
        (header(20, 11), None),
        (header(21, 9), None),
        (header(30, 9), None),
    ],
    ids=[*"23456", "the sixth last", "shorter", "longer", "its end", "a part of the next"],
)
def test_only_one_of_the_last_five_whole_batches_is_a_duplicate(batch: BatchHeader, expected: Duplicate | None) -> None:
    """INV-20: a replay gets the offsets and the time that the batch has in the log."""
    state = ProducerState(1000)
    for number in range(BATCHES_KEPT + 1):
        write(state, header(number * 10, 10, timestamp=5000 + number))
    if expected is None:
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            state.check(batch)
    else:
        assert state.check(batch) == expected
    assert state.end_offset == 1060


@pytest.mark.parametrize(
    ("first", "count", "following"),
    [(SEQUENCE_MAX - 4, 5, 0), (SEQUENCE_MAX - 1, 5, 3), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX, 2, 1)],
)
def test_sequences_wrap_at_their_maximum(state: ProducerState, first: int, count: int, following: int) -> None:
    """INV-20: after 2^31-1 comes 0, between batches and inside of one."""
    write(state, header(first, count))
    assert state.check(header(first, count)) == Duplicate(0, count - 1, 1000)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        state.check(header(following + 1))
    assert write(state, header(following, 3)) == count
    assert state.check(header(first, count)) == Duplicate(0, count - 1, 1000)


def test_a_check_changes_nothing(state: ProducerState) -> None:
    """BUG-24: an append that fails after it leaves the state as it was."""
    write(state, header(0, 5))
    before = copy.deepcopy((state.producers, state.end_offset))
    for batch in (header(5, 5), header(0, 5), header(0, epoch=1), header(0, producer_id=1), header(9)):
        with contextlib.suppress(KafkaError):
            state.check(batch)
    assert (state.producers, state.end_offset) == before


def test_a_producer_that_wrote_nothing_for_long_is_forgotten(state: ProducerState) -> None:
    write(state, header(0, producer_id=1, timestamp=1000))
    write(state, header(0, producer_id=2, timestamp=1001))
    write(state, header(0, producer_id=3, timestamp=1000, attributes=TRANSACTIONAL_BIT))
    assert state.expire(now_ms=1000, expiration_ms=1000) == 0  # all were heard of since the last look
    assert state.expire(now_ms=2000, expiration_ms=1000) == 1
    assert set(state.producers) == {2, 3}  # an open transaction is not forgotten
    assert write(state, header(77, producer_id=1)) == 3


@pytest.mark.parametrize(("end", "is_enough"), [(10, True), (9, True), (8, True), (7, False), (0, False)])
def test_a_cut_below_a_batch_of_a_producer_needs_a_rebuild(state: ProducerState, end: int, is_enough: bool) -> None:
    """BUG-24: the state no longer has all of the five batches before the cut."""
    write(state, header(0, 8))
    write(state, header(-1, 2, producer_id=-1, epoch=-1))
    assert state.truncate(end) is is_enough
    assert bool(state.producers) is is_enough
    if is_enough:
        assert state.end_offset == end


COMMIT, ABORT = Marker(True, 6), Marker(False, 6)


def transactional(sequence: int, producer_id: int = PRODUCER, count: int = 1, *, epoch: int = 3) -> BatchHeader:
    return header(sequence, count, producer_id=producer_id, epoch=epoch, attributes=TRANSACTIONAL_BIT)


def end(
    state: ProducerState, marker: Marker, producer_id: int = PRODUCER, *, epoch: int = 3
) -> EndedTransaction | None:
    batch = header(-1, producer_id=producer_id, epoch=epoch, timestamp=9000, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    state.check_coordinated(batch, marker)
    return state.append(batch, state.end_offset, marker)


def test_a_marker_ends_a_transaction(state: ProducerState) -> None:
    write(state, transactional(0, count=2))
    write(state, transactional(2, count=2))
    assert state.producers[PRODUCER].transaction_first_offset == 0
    assert (state.is_ongoing(PRODUCER, 3), state.is_ongoing(PRODUCER, 4), state.is_ongoing(9, 3)) == (
        True,
        False,
        False,
    )
    with refused(ErrorCode.INVALID_TXN_STATE):
        state.check(header(4, epoch=3))
    assert end(state, ABORT) == (PRODUCER, 0, 4, 5, False)
    entry = state.producers[PRODUCER]
    assert (entry.transaction_first_offset, entry.coordinator_epoch, entry.last_timestamp) == (-1, 6, 9000)
    assert entry.last_sequence == 3
    state.append(
        header(-1, producer_id=9, attributes=TRANSACTIONAL_BIT | CONTROL_BIT), 5
    )  # compaction removed the marker
    assert set(state.producers) == {PRODUCER}
    assert write(state, header(4, epoch=3)) == 6


def test_a_batch_of_an_ended_transaction_has_no_duplicates(state: ProducerState) -> None:
    """librdkafka gave the sequences of an aborted batch to a batch of its next transaction, which was acknowledged and in no log."""
    write(state, transactional(0, count=2))
    write(state, transactional(2, count=2))
    assert state.check(transactional(2, count=2)) == Duplicate(2, 3, 1000)
    end(state, ABORT)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        state.check(transactional(2, count=2))
    write(state, transactional(4, count=2))
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        state.check(transactional(2, count=2))
    assert state.check(transactional(4, count=2)) == Duplicate(5, 6, 1000)


def test_the_first_unstable_offset_waits_for_the_marker_and_its_replication(state: ProducerState) -> None:
    """KIP-98: three transactions, at 0, 1 and 2, that end in another order."""
    for producer_id in (1, 2, 3):
        write(state, transactional(0, producer_id))
    assert state.first_unstable(3) == 0
    assert end(state, COMMIT, 2) == (2, 1, 3, 0, True)
    assert end(state, ABORT, 1) == (1, 0, 4, 2, False)
    assert state.ongoing == [2]
    assert state.first_unstable(3) == 0  # the markers at 3 and 4 are not replicated
    assert state.first_unstable(4) == 0
    assert state.first_unstable(5) == 2
    end(state, ABORT, 3)
    frozen = state.freeze()
    assert (state.first_unstable(5), state.first_unstable(6), frozen.first_unstable(5)) == (2, None, 2)
    assert end(state, ABORT, 3) is None  # nothing was open


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "expected"),
    [
        (3, 6, None),
        (4, 7, None),
        (2, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 5, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_which_markers_are_fenced(
    state: ProducerState, epoch: int, coordinator_epoch: int, expected: ErrorCode | None
) -> None:
    write(state, transactional(0))
    end(state, COMMIT)
    batch = header(-1, epoch=epoch, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    with refused(expected) if expected else nullcontext():
        state.check_coordinated(batch, Marker(False, coordinator_epoch))


def test_a_batch_without_a_sequence_begins_a_transaction(state: ProducerState) -> None:
    """Offsets that are committed in a transaction have no sequence: only the epoch is checked."""
    for count in (1, 3):
        batch = transactional(-1, count=count)
        state.check_coordinated(batch, None)
        write(state, batch)
    assert (state.ongoing, state.producers[PRODUCER].last_sequence) == ([0], -1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        state.check_coordinated(transactional(-1, epoch=2), None)


batches_to_write = st.builds(
    header,
    sequence=st.integers(0, 6) | st.sampled_from([SEQUENCE_MAX - 1, SEQUENCE_MAX]),
    count=st.integers(1, 3),
    producer_id=st.integers(-1, 2),
    epoch=st.integers(0, 2),
)


@given(st.lists(batches_to_write, max_size=40))
def test_what_is_accepted_is_contiguous(batches: list[BatchHeader]) -> None:
    """INV-20: per producer and epoch every accepted batch begins where the one before ended; none is there twice."""
    state = ProducerState()
    expected: dict[tuple[int, int], int] = {}
    for batch in batches:
        try:
            if state.check(batch) is not None:
                continue
        except KafkaError:
            continue
        state.append(batch, state.end_offset)
        if batch.producer_id >= 0:
            key = (batch.producer_id, batch.producer_epoch)
            assert expected.get(key, batch.base_sequence) == batch.base_sequence
            expected[key] = (batch.base_sequence + batch.last_offset_delta + 1) % (SEQUENCE_MAX + 1)


NEAR_ITS_END = SEQUENCE_MAX - 3
SEQUENCES = st.one_of(st.integers(0, 6), st.integers(NEAR_ITS_END, SEQUENCE_MAX))


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1), SEQUENCES, st.integers(1, 3)), max_size=12), st.booleans()
)
def test_what_continues_is_accepted_and_noted_as_by_the_header(
    batches: list[tuple[int, int, int, int]], is_in_transaction: bool
) -> None:
    """LOG-5: the short way of plain batches. What it leaves to `check` is a first batch of an epoch, a repetition, a wrong one, ..."""
    state, same = ProducerState(), ProducerState()
    if is_in_transaction:
        for each in state, same:
            each.append(header(0, producer_id=2, attributes=TRANSACTIONAL_BIT), 0)
    for producer_id, epoch, sequence, count in batches:
        batch = header(sequence, count, producer_id=producer_id, epoch=epoch)
        entry = copy.deepcopy(state.producers.get(producer_id))
        try:
            is_accepted = state.check(batch) is None
        except KafkaError:
            is_accepted = False
        continues = state.continues((producer_id, epoch, sequence))
        assert is_accepted or not continues
        if is_accepted and not continues:
            assert entry is not None
            assert entry.epoch != epoch or entry.last_sequence == SEQUENCE_MAX
        if is_accepted:
            offset = state.end_offset
            state.append(batch, offset)
            same.append_plain((producer_id, epoch, sequence), offset + count - 1, count - 1, 1000)
        assert (same.producers, same.end_offset) == (state.producers, state.end_offset)
