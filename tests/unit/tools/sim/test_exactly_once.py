"""What a group that commits its offsets in transactions may have committed, and which outputs are there then."""

from __future__ import annotations

import pytest

from protocol.types import TopicPartition
from tools.sim.clients.history import ABORTED_TRANSACTION, COMMITTED_TRANSACTION, UNKNOWN_TRANSACTION, Transaction
from tools.sim.exactly_once import unlike_offsets, unlike_transactions
from tools.sim.policies import output_of

SOURCE, OUTPUT = TopicPartition("source", 1), TopicPartition("output", 0)
VISIBLE = {SOURCE: [(0, "a"), (2, "b"), (3, "c")]}


@pytest.mark.parametrize(
    ("offsets", "is_right"),
    [((0, 2), True), ((2, 0), True), ((0,), False), ((0, 2, 2), False), ((0, 2, 3), False)],
    ids=["all", "in another order", "one is missing", "one is doubled", "one is ahead"],
)
def test_outputs_and_the_committed_offset_are_there_together(offsets: tuple[int, ...], is_right: bool) -> None:
    outputs = [output_of(SOURCE, offset, OUTPUT, "processor0-1") for offset in offsets]
    assert (list(unlike_offsets(VISIBLE, ["of-another-producer", *outputs], {SOURCE: 3})) == []) is is_right


@pytest.mark.parametrize(
    ("outcome", "begun", "is_right"),
    [
        (COMMITTED_TRANSACTION, 1, True),
        (UNKNOWN_TRANSACTION, 1, True),
        (ABORTED_TRANSACTION, 1, False),
        (COMMITTED_TRANSACTION, 0, False),
    ],
)
def test_an_offset_is_told_if_its_transaction_was_not_aborted(outcome: str, begun: int, is_right: bool) -> None:
    transaction = Transaction("processor0-0", outcome=outcome, offsets={SOURCE: 3})
    assert (list(unlike_transactions([("member", {SOURCE: 3}, begun)], [transaction], {})) == []) is is_right
    assert not list(unlike_transactions([("member", {SOURCE: 0}, begun)], [], {}))
