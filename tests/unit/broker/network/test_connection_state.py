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
