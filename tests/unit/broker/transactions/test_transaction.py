"""One transactional id: who gets which epoch, what is refused, and what a failed record leaves (TXN-1, TXN-2; KIP-98, KIP-360)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transactions.states import (
    COMPLETED,
    PREPARED,
    TRANSITIONS,
    Cause,
    IllegalTransition,
    TransactionState,
    TransactionVersion,
    next_state,
)
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
TV_2 = TransactionVersion.TV_2
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
    held = transaction(S.COMPLETE_COMMIT, previous_producer_id=6, last_producer_epoch=3)
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


# -- transaction version 2 (KIP-890) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "commit", "commit_again", "abort", "abort_again"),
    [
        (S.EMPTY, "INVALID_TXN_STATE", "PRODUCER_FENCED", S.PREPARE_ABORT, "PRODUCER_FENCED"),
        (S.ONGOING, S.PREPARE_COMMIT, "PRODUCER_FENCED", S.PREPARE_ABORT, "PRODUCER_FENCED"),
        (S.PREPARE_COMMIT, *["CONCURRENT_TRANSACTIONS"] * 4),
        (S.PREPARE_ABORT, *["CONCURRENT_TRANSACTIONS"] * 4),
        (S.COMPLETE_COMMIT, "INVALID_TXN_STATE", "NONE", S.PREPARE_ABORT, "INVALID_TXN_STATE"),
        (S.COMPLETE_ABORT, "INVALID_TXN_STATE", "PRODUCER_FENCED", S.PREPARE_ABORT, "NONE"),
    ],
)
def test_an_end_that_raises_the_epoch(
    state: TransactionState, commit: object, commit_again: object, abort: object, abort_again: object
) -> None:
    """The second table of `states`. A repetition has the epoch before."""

    def answer(is_commit: bool, epoch: int) -> object:
        held = transaction(state, client_version=TV_2)
        answered = held.end_and_raise(ProducerIdAndEpoch(7, epoch), is_commit, None, 200)
        if not isinstance(answered, Change):
            return answered.name
        now = recorded(held, answered)
        assert (now.producer, now.last_producer_epoch, now.next_producer) == ((7, 5), 4, (7, 5))
        assert (now.start_ms, now.client_version) == (90 if state is S.ONGOING else 200, TV_2)
        return now.state

    assert [answer(True, 4), answer(True, 3)] == [commit, commit_again]
    assert [answer(False, 4), answer(False, 3)] == [abort, abort_again]
    for epoch, error in ((2, "PRODUCER_FENCED"), (5, "PRODUCER_FENCED")):
        assert answer(True, epoch) == (error if state not in PREPARED else "CONCURRENT_TRANSACTIONS")


def test_exhausted_epochs_get_a_new_producer_id_at_the_end() -> None:
    """The marker has the last epoch, which no producer gets. A repetition gets the same new id."""
    last = EPOCH_MAX - 1
    held = transaction(S.ONGOING, epoch=last)
    mine = me(held)
    with pytest.raises(NeedsProducerId):
        held.end_and_raise(mine, True, None, 200)
    now = recorded(held, held.end_and_raise(mine, True, 30, 200))
    assert (now.producer, now.next_producer) == ((7, EPOCH_MAX), (30, 0))
    assert held.add_partitions(now.next_producer, (B,), 250, TV_2) is ErrorCode.CONCURRENT_TRANSACTIONS
    held.marked([A])
    now = recorded(held, held.complete(300))
    assert (now.state, now.producer, now.next_producer_id) == (S.COMPLETE_COMMIT, (30, 0), -1)
    assert held.end_and_raise(mine, True, None, 400) is ErrorCode.NONE
    assert held.end_and_raise(mine, False, None, 400) is ErrorCode.INVALID_TXN_STATE
    again = recorded(held, held.init_producer_id(TIMEOUT_MS, mine, None, 400, TV_2))
    assert again.producer == (30, 0)
    assert held.end_and_raise(mine, True, None, 400) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert recorded(held, held.add_partitions(me(held), (B,), 500, TV_2)).client_version is TV_2


def test_an_abort_without_a_transaction_also_needs_a_new_producer_id() -> None:
    held = transaction(S.EMPTY, epoch=EPOCH_MAX - 1)
    with pytest.raises(NeedsProducerId):
        held.end_and_raise(me(held), False, None, 200)
    now = recorded(held, held.end_and_raise(me(held), False, 30, 200))
    assert (now.state, held.unmarked, now.next_producer) == (S.PREPARE_ABORT, set(), (30, 0))


def test_the_coordinator_raises_the_epoch_once() -> None:
    """KAFKA-19367. The producer whose transaction was aborted may go on; a new producer gets a later epoch, and fences it."""
    held = transaction(S.ONGOING)
    now = recorded(held, held.time_out(90 + TIMEOUT_MS + 1, TV_2))
    assert (now.state, now.producer, now.last_producer_epoch, now.client_version) == (S.PREPARE_ABORT, (7, 5), 4, TV_2)
    held.marked([A])
    recorded(held, held.complete(300))
    assert held.end_and_raise(ProducerIdAndEpoch(7, 4), True, None, 400) is ErrorCode.PRODUCER_FENCED, "KAFKA-20785"
    assert held.end_and_raise(ProducerIdAndEpoch(7, 4), False, None, 400) is ErrorCode.NONE
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, ProducerIdAndEpoch(7, 4), None, 400, TV_2)).producer == (
        7,
        5,
    )
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, None, None, 500, TV_2)).producer == (7, 6)
    assert held.end_and_raise(ProducerIdAndEpoch(7, 5), False, None, 600) is ErrorCode.PRODUCER_FENCED


def test_nobody_gets_the_epoch_that_is_there_to_fence() -> None:
    """Kafka gives it out, and then cannot end the next transaction."""
    last = ProducerIdAndEpoch(7, EPOCH_MAX - 1)
    held = transaction(S.ONGOING, epoch=last.epoch)
    recorded(held, held.time_out(90 + TIMEOUT_MS + 1, TV_2))
    held.marked([A])
    assert recorded(held, held.complete(300)).producer == (7, EPOCH_MAX)
    assert held.end_and_raise(last, False, None, 400) is ErrorCode.PRODUCER_FENCED
    with pytest.raises(NeedsProducerId):
        held.init_producer_id(TIMEOUT_MS, last, None, 400, TV_2)
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, last, 30, 400, TV_2)).producer == (30, 0)
    assert recorded(held, held.init_producer_id(TIMEOUT_MS, last, None, 500, TV_2)).producer == (30, 0), "a repetition"


def test_a_fenced_producer_is_not_told_of_the_transaction_of_another() -> None:
    """The other one, of an earlier version, got the next epoch from InitProducerId, and ended its transaction in it."""
    held = transaction(S.EMPTY)
    fenced = me(held)
    recorded(held, held.init_producer_id(TIMEOUT_MS, None, None, 200, TV_2))
    recorded(held, held.add_partitions(me(held), (A,), 300))
    recorded(held, held.end(me(held), True, 400))
    held.marked([A])
    recorded(held, held.complete(500))
    assert (held.state, held.current.producer_epoch) == (S.COMPLETE_COMMIT, fenced.epoch + 1)
    for is_commit in (True, False):
        assert held.end_and_raise(fenced, is_commit, None, 600) is ErrorCode.PRODUCER_FENCED


def test_a_transaction_of_one_version_ends_in_another() -> None:
    """The level changed meanwhile, or two clients have the same transactional id."""
    held = transaction(S.EMPTY)
    recorded(held, held.add_partitions(me(held), (A,), 200, TV_2))
    now = recorded(held, held.end(me(held), True, 300))
    assert (now.producer_epoch, now.client_version) == (4, TransactionVersion.TV_0)
    held.marked([A])
    recorded(held, held.complete(400))
    recorded(held, held.add_partitions(me(held), (A,), 500))
    assert recorded(held, held.end_and_raise(me(held), True, None, 600)).producer_epoch == 5


@pytest.mark.parametrize("state", [S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_abort_without_a_transaction_is_accepted_once_the_cluster_has_lost_version_2(
    state: TransactionState,
) -> None:
    """None of the producer's batches was taken, so the coordinator does not know its transaction."""
    held = transaction(state, client_version=TV_2)
    assert held.end(me(held), False, 200) is ErrorCode.NONE
    assert held.end(me(held), False, 200, TV_2) is (
        ErrorCode.NONE if state is S.COMPLETE_ABORT else ErrorCode.INVALID_TXN_STATE
    )
    assert held.end(ProducerIdAndEpoch(7, 3), False, 200) is ErrorCode.PRODUCER_FENCED
    recorded(held, held.add_partitions(me(held), (A,), 300, TV_2))
    recorded(held, held.end(me(held), True, 400))
    held.marked([A])
    recorded(held, held.complete(500))
    assert held.end(me(held), False, 600) is ErrorCode.NONE, "its client learned of it when it had committed"
    recorded(held, held.add_partitions(me(held), (A,), 700))
    recorded(held, held.end(me(held), True, 800))
    held.marked([A])
    recorded(held, held.complete(900))
    assert held.end(me(held), False, 1_000) is ErrorCode.INVALID_TXN_STATE
    never = transaction(S.EMPTY)
    assert never.end(me(never), False, 200) is ErrorCode.INVALID_TXN_STATE


STEPS_OF_VERSION_2 = st.lists(
    st.tuples(
        st.sampled_from(
            ("init", "resume", "add", "add", "commit", "abort", "old end", "repeat", "late", "mark", "reload")
        ),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(STEPS_OF_VERSION_2, st.sampled_from((0, EPOCH_MAX - 5)))
def test_each_transaction_of_version_2_has_an_epoch_of_its_own(
    steps: list[tuple[str, bool, int]], first_epoch: int
) -> None:
    """Several producers with the same id, answers that are lost, records that fail, and coordinators that load what is recorded.

    Whoever was told that his transaction is committed or aborted is right; no two transactions have the same id and epoch; nobody gets
    the epoch that is there to fence.
    """
    held = Transaction(TransactionMetadata(7, first_epoch, TIMEOUT_MS, S.EMPTY, updated_ms=0))
    producers = [me(held)]
    """Whom it was told, one after the other; each may still be there."""
    ended: dict[ProducerIdAndEpoch, S] = {}
    began_as: dict[ProducerIdAndEpoch, ProducerIdAndEpoch] = {}
    """Who began the transaction of a producer that was fenced in memory only."""
    ids = iter(range(100, 1000))
    now = 0

    def told(producer: ProducerIdAndEpoch) -> None:
        assert producer.epoch < EPOCH_MAX
        producers.append(producer)

    for what, succeeds, which in steps:
        now += TIMEOUT_MS + 1
        before = held.current
        producer = producers[-1 - which % len(producers)]
        is_commit = what == "commit" or (what == "repeat" and succeeds)
        match what:
            case "init" | "resume":
                change = held.init_producer_id(TIMEOUT_MS, producer if what == "resume" else None, next(ids), now, TV_2)
            case "add":
                change = held.add_partitions(producer, (A,), now, TV_2)
            case "commit" | "abort" | "repeat":
                change = held.end_and_raise(producer, is_commit, next(ids), now)
                if change is ErrorCode.NONE:
                    assert held.state is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
                    assert ended[producer] is held.state
                    told(me(held))
            case "old end":
                change = held.end(producer, succeeds, now)
            case "late":
                change = held.time_out(now, TV_2)
            case "mark" if held.state in PREPARED:
                held.marked([A])
                change = held.complete(now)
            case _:
                if held.pending is None:
                    held = Transaction(held.current._replace(last_producer_epoch=-1))
                continue
        if not isinstance(change, Change):
            assert held.current == before
            continue
        if not succeeds and what not in ("repeat", "old end"):
            held.failed(change)
            if held.current.producer != before.producer:  # a fence that was not recorded stays in force
                began_as[held.current.producer] = before.producer
            continue
        held.recorded(change)
        after = held.current
        if what == "old end":
            continue
        if after.state in PREPARED:
            assert (
                after.producer_epoch == before.producer_epoch + 1
                or before.producer_epoch == EPOCH_MAX
                or (change.cause in (Cause.FENCED, Cause.TIMED_OUT))
            )
            whose = began_as.pop(before.producer, before.producer)
            assert whose not in ended, "two transactions of the same producer and epoch"
            ended[whose] = S.COMPLETE_COMMIT if after.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT
        if what in ("init", "resume") and change.cause is Cause.INITIALIZED:
            told(after.producer)
        elif what in ("commit", "abort", "repeat") and succeeds:
            told(after.next_producer)
        if before.state in PREPARED:
            assert after.state in COMPLETED
            assert after.producer == before.next_producer
