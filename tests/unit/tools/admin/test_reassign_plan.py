"""Reassignment files, proposals and what is refused, by tables (CTL-10, CTL-11)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.types import Assignment, TopicPartition
from tools.admin.reassign_plan import (
    PlanError,
    batches,
    check_plan,
    original_replicas,
    parse_partitions,
    parse_plan,
    parse_topics,
    plan_json,
    plan_text,
    propose,
)
from tools.admin.topic_views import PartitionView

ORDERS = [TopicPartition("orders", number) for number in range(4)]
NEW = TopicPartition("new", 0)


def plan_file(*partitions: dict[str, Any], **more: Any) -> str:
    return json.dumps({"version": 1, "partitions": list(partitions)} | more)


def row(replicas: Any, partition: Any = 0, topic: Any = "orders", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "replicas": replicas} | more


def test_parse_plan_keeps_the_order_and_needs_neither_version_nor_log_dirs() -> None:
    text = json.dumps({"partitions": [row([3, 1], 1), row([1], 0, log_dirs=["any"])]})
    assert list(parse_plan(text, "f").items()) == [(ORDERS[1], (3, 1)), (ORDERS[0], (1,))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f: line 1, column 1: not JSON"),
        ('{"version":1,\n "partitions": [}', "f: line 2, column 17: not JSON"),
        ("[" * 100_000, "f: not JSON: nested too deeply"),
        ("[]", 'f: expected {"version": 1, "partitions": ['),
        ("{}", 'f: expected {"version": 1, "partitions": ['),
        ('{"partitions": 5}', 'f: expected {"version": 1, "partitions": ['),
        (plan_file(row([1]), version=2), "f: unknown version 2: use 1"),
        (plan_file(row([1]), version=True), "f: unknown version true"),
        (plan_file(), "f: the list of partitions is empty"),
        ('{"partitions": [5]}', "f: partitions[0] is not an object"),
        (plan_file(row([1], topic="")), 'partitions[0]: topic must be a name, found ""'),
        (plan_file(row([1], topic=None)), "partitions[0]: topic must be a name, found null"),
        (plan_file(row([1], partition=-1)), "partitions[0]: partition must be a whole number of at least 0, found -1"),
        (plan_file(row([1], partition="0")), 'found "0"'),
        (plan_file(row([1], partition=True)), "found true"),
        (plan_file(row([])), "partitions[0] (orders-0): replicas must be a list of broker ids, found []"),
        (plan_file(row(None)), "replicas must be a list of broker ids, found null"),
        (plan_file(row([1, "2"])), '"2" is not a broker id'),
        (plan_file(row([1, -2])), "-2 is not a broker id"),
        (plan_file(row([1, 2, 1])), "partitions[0] (orders-0): broker 1 is listed twice in the replicas 1,2,1"),
        (plan_file(row([1]), row([2])), "partitions[1]: orders-0 is listed twice"),
        (plan_file(row([1, 2], log_dirs=["any"])), "log_dirs must have one entry for each of the 2 replicas"),
        (plan_file(row([1], log_dirs=["data"])), '"data" in log_dirs is neither "any" nor an absolute path'),
        (plan_file(row([1], log_dirs=[7])), '7 in log_dirs is neither "any" nor an absolute path'),
    ],
)
def test_parse_plan_says_where_and_why(text: str, says: str) -> None:
    with pytest.raises(PlanError) as refusal:
        parse_plan(text, "f")
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_parse_topics_and_partitions() -> None:
    assert parse_topics('{"topics":[{"topic":"b"},{"topic":"a"}]}', "f") == ["b", "a"]
    assert parse_partitions('{"partitions":[{"topic":"orders","partition":1}]}', "f") == [ORDERS[1]]


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_topics, '{"topics":[]}', "the list of topics is empty"),
        (parse_topics, '{"topics":["b"]}', r"topics\[0\] is not an object"),
        (parse_topics, '{"topics":[{"topic":"b"},{"topic":"b"}]}', "topic b is listed twice"),
        (parse_topics, '{"partitions":[]}', r'{"version": 1, "topics": \['),
        (parse_partitions, plan_file(row([1]), row([2])), "orders-0 is listed twice"),
    ],
)
def test_a_file_without_topics_or_partitions_is_refused(
    parse: Callable[[str, str], object], text: str, says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        parse(text, "f")


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 9)),
        st.lists(st.integers(0, 9), min_size=1, unique=True).map(tuple),
        min_size=1,
    )
)
def test_a_written_plan_is_read_again(plan: dict[TopicPartition, tuple[int, ...]]) -> None:
    assert parse_plan(plan_text(plan), "f") == plan
    assert parse_plan(json.dumps(plan_json(plan), indent=2), "f") == plan


def current(factor: int, partitions: int = 4) -> dict[TopicPartition, tuple[int, ...]]:
    return {partition: tuple(range(1, factor + 1)) for partition in ORDERS[:partitions]}


def test_propose_spreads_leaders_over_the_brokers() -> None:
    plan = propose(current(2), [(1, None), (2, None), (3, None), (4, None)], {"orders": 1})
    assert [replicas[0] for replicas in plan.values()] == [2, 3, 4, 1]
    assert all(len(set(replicas)) == 2 for replicas in plan.values())


def test_propose_puts_replicas_on_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = propose(current(2), list(racks.items()), {"orders": 0})
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in plan.values())


def test_propose_refuses_brokers_of_which_only_some_have_racks_and_too_few_brokers() -> None:
    half = [(1, "a"), (2, None), (3, "b")]
    with pytest.raises(PlanError, match="brokers 2 have no rack, but others do: use --disable-rack-aware"):
        propose(current(2), half, {"orders": 0})
    assert len(propose(current(2), half, {"orders": 0}, rack_aware=False)) == 4
    with pytest.raises(PlanError, match=r"topic orders: replication factor 3 .* name more brokers in --broker-list"):
        propose(current(3), [(1, None), (2, None)], {"orders": 0})


VIEWS = {
    ORDERS[0]: PartitionView(0, 1, (1, 2), (1, 2)),
    ORDERS[1]: PartitionView(1, 2, (2, 9), (2,)),  # broker 9 is dead
}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({NEW: (1,)}, "topic new does not exist"),
        ({ORDERS[3]: (1,)}, "orders-3 does not exist"),
        ({ORDERS[0]: (1, 7)}, r"orders-0: broker 7 is unknown \(live: 1,2,3\)"),
        ({ORDERS[0]: (1, 9)}, "orders-0: broker 9 is down and cannot get a replica"),
        ({ORDERS[0]: (1, 2)}, "nothing to move"),
        ({ORDERS[0]: (4, 5, 6, 7)}, "and 1 more"),
    ],
)
def test_check_plan_refuses(plan: dict[TopicPartition, tuple[int, ...]], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        check_plan(plan, VIEWS, {1, 2, 3}, {})


@pytest.mark.parametrize(
    ("plan", "under_way", "to_move"),
    [
        ({ORDERS[0]: (1, 2), ORDERS[1]: (2, 3)}, {}, {ORDERS[1]: (2, 3)}),
        ({ORDERS[1]: (3, 9)}, {}, {ORDERS[1]: (3, 9)}),
        ({ORDERS[0]: (2, 1)}, {}, {ORDERS[0]: (2, 1)}),
        ({ORDERS[0]: (1, 2)}, {ORDERS[0]: Assignment((1, 2), (2,), ())}, {ORDERS[0]: (1, 2)}),
    ],
    ids=["what-is-so-already", "a-replica-stays-on-a-dead-broker", "another-order", "what-moves-already"],
)
def test_check_plan(
    plan: dict[TopicPartition, tuple[int, ...]],
    under_way: dict[TopicPartition, Assignment],
    to_move: dict[TopicPartition, tuple[int, ...]],
) -> None:
    assert check_plan(plan, VIEWS, {1, 2, 3}, under_way) == to_move


def test_original_replicas_are_those_before_the_move() -> None:
    view = PartitionView(0, 1, (3, 1, 2), (1, 2))
    assert original_replicas(view, None) == (3, 1, 2)
    assert original_replicas(view, Assignment((3, 1, 2), (3,), (1, 2))) == (1, 2)


@pytest.mark.parametrize(("size", "lengths"), [(None, [4]), (1, [1, 1, 1, 1]), (3, [3, 1]), (9, [4])])
def test_batches(size: int | None, lengths: list[int]) -> None:
    parts = batches(current(2), size)
    assert [len(part) for part in parts] == lengths
    assert [partition for part in parts for partition in part] == ORDERS
