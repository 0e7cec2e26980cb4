"""One transactional id: who gets which epoch, what is refused, and what a failed record leaves (TXN-1, TXN-2; KIP-98, KIP-360)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transactions.states import PREPARED, TRANSITIONS, Cause, IllegalTransition, TransactionState, next_state
from broker.transactions.transaction import (
    EPOCH_MAX,
    PARTITIONS_MAX,
    Change,
    NeedsProducerId,
    ProducerIdAndEpoch,
    Transaction,
    TransactionMetadata,
)
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
S = TransactionState
TIMEOUT_MS = 1_000


def transaction(state: TransactionState, epoch: int = 4, producer_id: int = 7, **fields: object) -> Transaction:
    partitions = frozenset((A,)) if state in (S.ONGOING, *PREPARED) else frozenset()
    metadata = TransactionMetadata(producer_id, epoch, TIMEOUT_MS, state, partitions, 100, 90)
    return Transaction(metadata._replace(**fields))  # type: ignore[arg-type]


def recorded(held: Transaction, change: Change | ErrorCode | None) -> TransactionMetadata:
    assert isinstance(change, Change), change
    held.recorded(change)
    return held.current


def me(held: Transaction) -> ProducerIdAndEpoch:
    return held.current.producer


@pytest.mark.parametrize(
    ("state", "commit", "abort", "add", "init"),
    [
        (S.EMPTY, "INVALID_TXN_STATE", "INVALID_TXN_STATE", S.ONGOING, S.EMPTY),
        (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.ONGOING, S.PREPARE_ABORT),
        (S.PREPARE_COMMIT, *["CONCURRENT_TRANSACTIONS"] * 4),
        (S.PREPARE_ABORT, *["CONCURRENT_TRANSACTIONS"] * 4),
        (S.COMPLETE_COMMIT, "NONE", "INVALID_TXN_STATE", S.ONGOING, S.EMPTY),
        (S.COMPLETE_ABORT, "INVALID_TXN_STATE", "NONE", S.ONGOING, S.EMPTY),
    ],
)
def test_requests_by_state(state: TransactionState, commit: object, abort: object, add: object, init: object) -> None:
    """The table of `states`."""

    def answer(ask: str) -> object:
        held = transaction(state)
        answered = {
            "commit": lambda: held.end(me(held), True, 200),
            "abort": lambda: held.end(me(held), False, 200),
            "add": lambda: held.add_partitions(me(held), (B,), 200),
            "init": lambda: held.init_producer_id(TIMEOUT_MS, None, None, 200),
        }[ask]()
        return answered.metadata.state if isinstance(answered, Change) else answered.name

    assert [answer(ask) for ask in ("commit", "abort", "add", "init")] == [commit, abort, add, init]


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (ProducerIdAndEpoch(8, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(7, 3), ErrorCode.PRODUCER_FENCED),
        (ProducerIdAndEpoch(7, 5), ErrorCode.PRODUCER_FENCED),
    ],
)
@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_ABORT])
def test_other_producers_are_refused(state: TransactionState, producer: ProducerIdAndEpoch, error: ErrorCode) -> None:
    """TXN-2."""
    held = transaction(state)
    assert held.end(producer, True, 200) is error
    assert held.add_partitions(producer, (A,), 200) is error
    assert held.verify(producer, (A,)) == {A: error}


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (None, (7, 5, -1)),
        ((7, 4), (7, 5, 4)),
        ((7, 3), (7, 4, 3)),
        ((7, 2), "PRODUCER_FENCED"),
        ((7, 5), "PRODUCER_FENCED"),
        ((6, EPOCH_MAX - 1), "PRODUCER_FENCED"),
        ((5, 0), "PRODUCER_FENCED"),
    ],
)
def test_the_next_epoch(expected: tuple[int, int] | None, answer: object) -> None:
    """KIP-360. (7, 3) repeats the request whose answer was lost: it gets the same answer."""
    held = transaction(S.COMPLETE_COMMIT, last_producer_id=6, last_producer_epoch=3)
    change = held.init_producer_id(2_000, ProducerIdAndEpoch(*expected) if expected else None, None, 200)
    if isinstance(change, ErrorCode):
        assert change.name == answer
        return
    now = recorded(held, change)
    assert (now.producer_id, now.producer_epoch, now.last_producer_epoch) == answer
    assert (now.state, now.timeout_ms, now.partitions, now.start_ms) == (S.EMPTY, 2_000, frozenset(), -1)


def test_a_new_id_starts_at_epoch_0() -> None:
    held = Transaction.new(9, TIMEOUT_MS, 50)
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(3, 3), 9, 50)).producer == (9, 0)


def test_exhausted_epochs_get_a_new_producer_id() -> None:
    last = EPOCH_MAX - 1
    held = transaction(S.COMPLETE_ABORT, epoch=last)
    with pytest.raises(NeedsProducerId):
        held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(7, last), None, 200)
    now = recorded(held, held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(7, last), 30, 200))
    assert now.producer == (30, 0)
    again = recorded(held, held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(7, last), None, 300))
    assert again.producer == (30, 0), "the answer was lost"
    assert held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(8, last), None, 300) is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_can_still_be_fenced() -> None:
    held = transaction(S.ONGOING, epoch=EPOCH_MAX - 1)
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, None, None, 200)).producer_epoch == EPOCH_MAX
    held.marked([A])
    recorded(held, held.complete(300))
    with pytest.raises(NeedsProducerId):
        held.init_producer_id(TIMEOUT_MS, None, None, 400)


def test_a_new_producer_aborts_the_transaction_of_the_old_one() -> None:
    """TXN-2: in the next epoch, which nobody gets."""
    held = transaction(S.ONGOING)
    change = held.init_producer_id(TIMEOUT_MS, None, None, 200)
    now = recorded(held, change)
    assert (now.state, now.producer_epoch, now.partitions) == (S.PREPARE_ABORT, 5, {A})
    held.marked([A])
    recorded(held, held.complete(300))
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, None, None, 400)).producer_epoch == 6


def test_a_fence_that_was_not_recorded_fences_and_uses_no_second_epoch() -> None:
    held = transaction(S.ONGOING)
    change = held.time_out(90 + TIMEOUT_MS + 1)
    assert isinstance(change, Change)
    held.failed(change)
    assert held.end(ProducerIdAndEpoch(7, 4), True, 2_000) is ErrorCode.PRODUCER_FENCED
    assert recorded(held, held.time_out(90 + TIMEOUT_MS + 2)).producer_epoch == 5


def test_time_outs_and_expiry() -> None:
    assert transaction(S.ONGOING).time_out(90 + TIMEOUT_MS) is None
    for state in (S.EMPTY, S.PREPARE_COMMIT, S.COMPLETE_ABORT):
        assert transaction(state).time_out(10**9) is None
    for state in S:
        is_allowed = state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
        if state not in (S.DEAD, S.PREPARE_EPOCH_FENCE):
            assert (transaction(state).expire(600, 500) is not None) is is_allowed
            assert transaction(state).expire(599, 500) is None


def test_while_a_change_is_recorded_everything_else_waits() -> None:
    held = transaction(S.EMPTY)
    change = held.add_partitions(me(held), (A,), 200)
    assert isinstance(change, Change)
    assert held.add_partitions(me(held), (A,), 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert held.end(me(held), True, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert held.init_producer_id(TIMEOUT_MS, None, None, 200) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert held.expire(10**9, 1) is None
    assert held.verify(me(held), (A,)) == {A: ErrorCode.TRANSACTION_ABORTABLE}, "not recorded yet"
    held.failed(change)
    assert recorded(held, held.add_partitions(me(held), (A, B), 300)).start_ms == 300
    assert recorded(held, held.add_partitions(me(held), (TopicPartition("c", 0),), 400)).start_ms == 300
    assert held.add_partitions(me(held), (A, B), 500) is ErrorCode.NONE
    assert held.verify(me(held), (A, TopicPartition("d", 0))) == {
        A: ErrorCode.NONE,
        TopicPartition("d", 0): ErrorCode.TRANSACTION_ABORTABLE,
    }


def test_the_partitions_of_a_transaction_are_limited() -> None:
    held = transaction(S.ONGOING)
    some = [TopicPartition("c", number) for number in range(PARTITIONS_MAX)]
    assert held.add_partitions(me(held), some, 200) is ErrorCode.INVALID_REQUEST, "one is there already"
    assert len(recorded(held, held.add_partitions(me(held), some[1:], 200)).partitions) == PARTITIONS_MAX


def test_only_the_transitions_of_the_table() -> None:
    with pytest.raises(IllegalTransition):
        next_state(S.PREPARE_COMMIT, Cause.ABORTED)
    assert {after for (before, _), after in TRANSITIONS.items() if before is S.PREPARE_COMMIT} == {S.COMPLETE_COMMIT}
    assert {after for (before, _), after in TRANSITIONS.items() if before is S.PREPARE_ABORT} == {S.COMPLETE_ABORT}


STEPS = st.lists(
    st.tuples(st.sampled_from(("init", "retry", "add", "commit", "abort", "late", "mark")), st.booleans()), max_size=40
)


@given(STEPS)
def test_epochs_never_repeat_and_decisions_stay(steps: list[tuple[str, bool]]) -> None:
    """Whatever is asked and whichever records fail: a producer's epoch is given out once, except to a retry, and a decided transaction ends
    as it was decided."""
    held = Transaction.new(1, TIMEOUT_MS, 0)
    given_out: set[tuple[int, int]] = set()
    now = 0
    for what, succeeds in steps:
        now += TIMEOUT_MS + 1
        before = held.current
        producer = held.current.producer
        match what:
            case "init":
                change = held.init_producer_id(TIMEOUT_MS, None, None, now)
            case "retry" if producer.epoch >= 0:
                change = held.init_producer_id(TIMEOUT_MS, producer, None, now)
            case "add":
                change = held.add_partitions(producer, (A,), now) if producer.epoch >= 0 else None
            case "commit" | "abort":
                change = held.end(producer, what == "commit", now)
            case "late":
                change = held.time_out(now)
            case "mark" if held.state in PREPARED:
                held.marked([A])
                change = held.complete(now)
            case _:
                continue
        if not isinstance(change, Change):
            assert held.current == before
            continue
        if not succeeds:
            held.failed(change)
            assert held.current._replace(producer_epoch=0, last_producer_epoch=0) == before._replace(
                producer_epoch=0, last_producer_epoch=0
            )
            continue
        held.recorded(change)
        assert held.current.producer_epoch >= before.producer_epoch
        if change.cause is Cause.INITIALIZED:
            assert held.current.producer not in given_out
            given_out.add(held.current.producer)
        if before.state in PREPARED:
            assert held.state.value == before.state.value.replace("Prepare", "Complete")
