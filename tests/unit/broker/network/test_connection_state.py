"""Answers leave in the order of the requests, whatever the order in which they are ready."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.network.connection_state import AnswerOrder

KINDS = ["ready", "silent", "late"]


@given(st.permutations(range(8)), st.lists(st.sampled_from(KINDS), min_size=8, max_size=8))
def test_answers_leave_in_the_order_of_their_requests(order: list[int], kinds: list[str]) -> None:
    """A silent request has no answer (acks=0).

    A late answer is made in its turn and not before: a Metadata answer that waits behind a producer's tells what is true when it
    leaves (CTL-16).
    """
    answers = AnswerOrder()
    assert [answers.next_number() for _ in order] == list(range(8))
    left: list[object] = []
    expected: list[bytes] = []
    done: set[int] = set()
    in_turn = 0
    for number in order:
        done.add(number)
        if kinds[number] == "late":
            left += answers.answer_in_turn(number, lambda n=number: (b"%d at %d" % (n, len(done)),))  # type: ignore[misc]
        else:
            left += answers.answer(number, () if kinds[number] == "silent" else (b"%d" % number, b"x"))
        while in_turn in done:
            made = {"ready": [b"%d" % in_turn, b"x"], "silent": [], "late": [b"%d at %d" % (in_turn, len(done))]}
            expected += made[kinds[in_turn]]
            in_turn += 1
        assert left == expected
        assert answers.in_flight == 8 - in_turn
        assert answers.held_bytes == sum(2 for n in done if n > in_turn and kinds[n] == "ready")
    assert answers.held_bytes == 0
