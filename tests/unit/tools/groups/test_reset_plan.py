"""Where offsets are set: Kafka's rules for each target, and the csv. Any other csv: the fuzzer's decoder `offsets-file`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.types import TopicPartition
from tools.failures import AdminError
from tools.groups.reset_plan import (
    LogOffsets,
    ResetRow,
    Target,
    TopicSelection,
    export_text,
    parse_reset_file,
    parse_selection,
    plan_reset,
    reset_lines,
    select_partitions,
)

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGS = LogOffsets(earliest={P0: 10, P1: 0}, latest={P0: 100, P1: 50}, at_time={P0: 42})
COMMITTED = {P0: 20}


@pytest.mark.parametrize(
    ("target", "wanted", "p0", "p1", "warnings"),
    [
        (Target.EARLIEST, None, 10, 0, 0),
        (Target.LATEST, None, 100, 50, 0),
        (Target.CURRENT, None, 20, 50, 0),
        (Target.OFFSET, 30, 30, 30, 0),
        (Target.OFFSET, 60, 60, 50, 1),
        (Target.OFFSET, 5, 10, 5, 1),
        (Target.OFFSET, 10**18, 100, 50, 2),
        (Target.DATETIME, 1, 42, 50, 0),
        (Target.DURATION, 1, 42, 50, 0),
        (Target.FILE, {P0: 11, P1: 51}, 11, 50, 1),
    ],
)
def test_targets(
    target: Target, wanted: int | Mapping[TopicPartition, int] | None, p0: int, p1: int, warnings: int
) -> None:
    plan = plan_reset("g", [P1, P0, P1], target, wanted, COMMITTED, LOGS)
    assert plan.rows == (ResetRow("g", "orders", 0, p0, 20), ResetRow("g", "orders", 1, p1, None))
    assert len(plan.warnings) == warnings


@pytest.mark.parametrize(("shift", "new"), [(0, 20), (5, 25), (-5, 15), (-50, 10), (500, 100), (-(2**63), 10)])
def test_shift(shift: int, new: int) -> None:
    plan = plan_reset("g", [P0], Target.SHIFT, shift, COMMITTED, LOGS)
    assert [row.new_offset for row in plan.rows] == [new]


def test_warnings_are_kafkas() -> None:
    (warning,) = plan_reset("g", [P0, P1], Target.OFFSET, 60, {}, LOGS).warnings
    assert warning == (
        "New offset (60) is higher than latest offset for topic partition orders-1. Value will be set to 50"
    )


@pytest.mark.parametrize(
    ("partition", "target", "says"),
    [
        (1, Target.SHIFT, "no committed offset to shift for partition orders-1"),
        *((2, target, "orders-2 has no leader") for target in Target),
    ],
)
def test_a_partition_that_cannot_be_reset(partition: int, target: Target, says: str) -> None:
    with pytest.raises(AdminError, match=says):
        plan_reset("g", [TopicPartition("orders", partition)], target, 1, COMMITTED, LOGS)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_no_target_leaves_the_log(shift: int, offset: int, earliest: int, length: int) -> None:
    logs = LogOffsets(earliest={P0: earliest}, latest={P0: earliest + length})
    for target, wanted in ((Target.SHIFT, shift), (Target.OFFSET, offset)):
        (row,) = plan_reset("g", [P0], target, wanted, {P0: 7}, logs).rows
        assert earliest <= row.new_offset <= earliest + length


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("orders", TopicSelection("orders")),
        ("orders:0", TopicSelection("orders", (0,))),
        ("orders:2,0,2", TopicSelection("orders", (2, 0))),
        ("a.b_c-d: 1", TopicSelection("a.b_c-d", (1,))),
    ],
)
def test_selections(text: str, selection: TopicSelection) -> None:
    assert parse_selection(text) == selection


@pytest.mark.parametrize("text", ["", ":", ":1", "orders:", "orders:a", "orders:-1", "orders:0,", "orders:1:2"])
def test_bad_selections(text: str) -> None:
    with pytest.raises(AdminError, match="expected TOPIC, or TOPIC:0,1"):
        parse_selection(text)


def test_selected_partitions() -> None:
    counts = {"orders": 2, "clicks": 1}
    selections = [TopicSelection("orders", (1,)), TopicSelection("clicks"), TopicSelection("orders")]
    assert select_partitions(selections, counts) == [P1, TopicPartition("clicks", 0), P0]
    with pytest.raises(AdminError, match="topic 'nope' does not exist"):
        select_partitions([TopicSelection("nope")], counts)
    with pytest.raises(AdminError, match="'orders' has no partition 2, only 0 to 1"):
        select_partitions([TopicSelection("orders", (2,))], counts)


@pytest.mark.parametrize(
    ("text", "groups", "offsets"),
    [
        ("orders,0,5\norders,1,6\n", ["g"], {"g": {P0: 5, P1: 6}}),
        ("orders, 0 ,5\r\n\r\n", ["g"], {"g": {P0: 5}}),
        ("g,orders,0,5\n", ["g"], {"g": {P0: 5}}),
        ('"g",orders,0,5\nh,orders,0,6\nother,orders,0,7\n', ["g", "h"], {"g": {P0: 5}, "h": {P0: 6}}),
    ],
)
def test_files(text: str, groups: list[str], offsets: dict[str, dict[TopicPartition, int]]) -> None:
    assert parse_reset_file(text, "plan.csv", groups) == offsets


@pytest.mark.parametrize(
    ("text", "groups", "says"),
    [
        ("", ["g"], "plan.csv has no offsets of 'g'"),
        ("h,orders,0,1", ["g"], "no offsets of 'g'"),
        ("orders,0,5\norders,0\n", ["g"], "plan.csv, line 2: expected TOPIC,PARTITION,OFFSET"),
        ("orders,0,5", ["g", "h"], "line 1: expected GROUP,TOPIC"),
        ("orders,0,-5", ["g"], "line 1: partition and offset must be numbers"),
        ("orders,x,5", ["g"], "line 1: partition and offset must be numbers"),
        ("orders,0,9223372036854775808", ["g"], "line 1: partition and offset must be numbers"),
        ("orders,0,5\norders,0,6", ["g"], "line 2: partition orders-0 is listed twice"),
        ('orders,0,"5' + "x" * 200_000, ["g"], "not csv"),
    ],
)
def test_bad_files(text: str, groups: list[str], says: str) -> None:
    with pytest.raises(AdminError) as refused:
        parse_reset_file(text, "plan.csv", groups)
    assert says in str(refused.value)


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.strip() == name and not set(name) & {"\0", "\r", "\n"})
ROWS = st.lists(
    st.builds(
        ResetRow,
        group=NAMES,
        topic=st.text("abc._-", min_size=1, max_size=5),
        partition=st.integers(0, 2**31 - 1),
        new_offset=st.integers(0, 2**63 - 1),
        current_offset=st.none(),
    ),
    min_size=1,
    unique_by=lambda row: (row.group, row.topic, row.partition),
)


@given(ROWS)
def test_exported_offsets_are_read_back(rows: list[ResetRow]) -> None:
    groups = list({row.group for row in rows})
    found = parse_reset_file(export_text(rows, with_group=True), "plan.csv", groups)
    assert {
        (group, *partition, offset) for group, offsets in found.items() for partition, offset in offsets.items()
    } == {(row.group, row.topic, row.partition, row.new_offset) for row in rows}


def test_lines() -> None:
    header, line = reset_lines([ResetRow("g", "orders", 0, 5, None)])
    assert header.split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET"]
    assert line.split() == ["g", "orders", "0", "5", "-"]
    assert header.index("TOPIC") == line.index("orders") == 31
