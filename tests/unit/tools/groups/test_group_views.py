"""Kafka's tables of groups."""

from __future__ import annotations

from dataclasses import replace

from protocol.types import TopicPartition
from tools.admin.cluster_view import NodeView
from tools.groups.group_views import (
    CommittedView,
    GroupView,
    MemberView,
    assignment_text,
    group_json,
    member_lines,
    offset_lines,
    offset_rows,
    remark,
    row_json,
    state_lines,
)

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
ONE = MemberView("one-1", None, "one", "/127.0.0.1", (P2,))
TWO = MemberView("two-1", None, "two", "/127.0.0.1", (P0, P1))
GROUP = GroupView("billing", "Stable", "range", NodeView(1, "localhost", 9092), (ONE, TWO))


def empty(state: str) -> GroupView:
    return GroupView("billing", state, "", None, ())


def test_offsets_and_lag() -> None:
    gone = TopicPartition("gone", 0)
    committed = {P0: CommittedView(4, 7), gone: CommittedView(9)}
    rows = offset_rows(GROUP, committed, {P0: 10, P1: 20, P2: 30})
    assert [line.split() for line in offset_lines(rows, verbose=False)] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"],
        ["billing", "orders", "0", "4", "10", "6", "two-1", "/127.0.0.1", "two"],
        ["billing", "orders", "1", "-", "20", "-", "two-1", "/127.0.0.1", "two"],
        ["billing", "orders", "2", "-", "30", "-", "one-1", "/127.0.0.1", "one"],
        ["billing", "gone", "0", "9", "-", "-", "-", "-", "-"],
    ]
    header, line, *_ = offset_lines(rows, verbose=True)
    assert (header.split()[3], line.split()[3]) == ("LEADER-EPOCH", "7")
    assert row_json(rows[0]) == {
        "topic": "orders",
        "partition": 0,
        "leader_epoch": 7,
        "current_offset": 4,
        "log_end_offset": 10,
        "lag": 6,
        "consumer_id": "two-1",
        "host": "/127.0.0.1",
        "client_id": "two",
    }


def test_columns_are_as_wide_as_kafkas_and_grow() -> None:
    header = (
        "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     "
    )
    assert next(offset_lines([], verbose=False)) == header + "HOST            CLIENT-ID"
    (row,) = offset_rows(empty("Empty"), {TopicPartition("t" * 40, 0): CommittedView(1)}, {})
    header, line = offset_lines([row], verbose=False)
    assert header.index("PARTITION") == line.index("0") == 16 + 41


def test_assignments() -> None:
    assert assignment_text((P1, TopicPartition("a", 3), P0)) == "a(3), orders(0,1)"


def test_a_group_of_the_new_kind() -> None:
    member = replace(TWO, epoch=6, target=(P0,))
    group = replace(GROUP, state="Reconciling", assignor="uniform", members=(member,), epoch=7, target_epoch=7)
    header, line = (line.split() for line in member_lines(group, verbose=True))
    assert header[-4:] == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    assert line[-5:] == ["2", "6", "orders(0,1)", "7", "orders(0)"]
    header, line = (line.split() for line in state_lines(group, verbose=True))
    assert header[-3:] == ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"]
    assert line[-5:] == ["uniform", "Reconciling", "7", "7", "1"]
    described = group_json(group)
    assert (described["type"], described["epoch"], described["target_epoch"]) == ("Consumer", 7, 7)
    assert [(each["epoch"], each["target"]) for each in described["members"]] == [(6, {"orders": [0]})]


def test_a_classic_group_has_no_epochs() -> None:
    assert next(iter(member_lines(GROUP, verbose=True))).split()[-1] == "ASSIGNMENT"
    assert [line.split()[-3:] for line in state_lines(GROUP, verbose=True)][1] == ["-", "-", "2"]
    assert "epoch" not in group_json(GROUP)


def test_remarks() -> None:
    assert remark(GROUP) is None
    assert remark(empty("Empty")) == "Consumer group 'billing' has no active members."
    for state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
        assert remark(empty(state)) == "Warning: Consumer group 'billing' is rebalancing."
