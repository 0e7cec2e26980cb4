"""Answers leave in the order of the requests, whatever the order in which they are ready."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.network.connection_state import AnswerOrder


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_any_order_of_answers_leaves_in_order(order: list[int], silent: set[int]) -> None:
    """`silent` requests have no answer (acks=0)."""
    answers = AnswerOrder()
    assert [answers.next_number() for _ in order] == list(range(8))
    left: list[object] = []
    done: set[int] = set()
    for number in order:
        left += answers.answer(number, () if number in silent else (bytes([number]), b"x"))
        done.add(number)
        in_turn = next((n for n in range(8) if n not in done), 8)
        assert left == [part for n in range(in_turn) if n not in silent for part in (bytes([n]), b"x")]
        assert answers.in_flight == 8 - in_turn
        assert answers.held_bytes == sum(2 for n in done if n > in_turn and n not in silent)
    assert answers.held_bytes == 0


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_what_is_made_in_its_turn_is_not_made_before(order: list[int], late: set[int]) -> None:
    """A Metadata answer that waits behind a producer's tells what is true when it leaves (CTL-16)."""
    answers = AnswerOrder()
    for _ in order:
        answers.next_number()
    done: set[int] = set()
    left: list[object] = []
    for number in order:
        done.add(number)
        if number in late:
            left += answers.answer_in_turn(number, lambda n=number: (b"%d at %d" % (n, len(done) - 1),))  # type: ignore[misc]
        else:
            left += answers.answer(number, (b"%d" % number,))
        in_turn = next((n for n in range(6) if n not in done), 6)
        assert [int(bytes(part).split()[0]) for part in left] == list(range(in_turn))  # type: ignore[call-overload]
    when = {n: max(order.index(earlier) for earlier in range(n + 1)) for n in range(6)}
    assert left == [b"%d at %d" % (n, when[n]) if n in late else b"%d" % n for n in range(6)]
