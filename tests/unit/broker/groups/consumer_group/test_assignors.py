"""What every assignor promises, and what `uniform` and `range` promise besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer_group.assignors.problem import Assignor, IdPartition, Owned, Problem, Subscriber
from broker.groups.consumer_group.assignors.range_assignor import RangeAssignor
from broker.groups.consumer_group.assignors.uniform_assignor import UniformAssignor
from broker.requests.steps import at_once

A, B = b"a", b"b"
BOTH = [UniformAssignor(), RangeAssignor()]


def subscribers(count: int, *topics: bytes) -> list[Subscriber]:
    return [Subscriber(f"m{number}", f"m{number}", frozenset(topics)) for number in range(count)]


def of(topic_id: bytes, *partitions: int) -> Owned:
    return frozenset(IdPartition(topic_id, partition) for partition in partitions)


def after(problem: Problem, target: dict[str, Owned]) -> Problem:
    """The same problem, once everybody has the target."""
    members = [replace(member, before=target.get(member.member_id, frozenset())) for member in problem.members]
    return replace(problem, members=members)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    topics = draw(st.dictionaries(st.sampled_from((A, B, b"c")), st.integers(1, 7), min_size=1))
    names = [*topics, b"nowhere"]
    chosen = st.frozensets(st.sampled_from(names), min_size=1)
    members = [Subscriber(f"m{n}", f"m{n}", draw(chosen)) for n in range(draw(st.integers(0, 6)))]
    had: dict[str, set[IdPartition]] = {member.member_id: set() for member in members}
    for topic_id, count in topics.items():
        for partition in range(count + 2):  # the topic may have been larger
            holder = draw(st.sampled_from([None, *sorted(had)]))
            if holder is not None:
                had[holder].add(IdPartition(topic_id, partition))
    return Problem([replace(member, before=frozenset(had[member.member_id])) for member in members], topics)


@pytest.mark.parametrize("assignor", BOTH, ids=lambda assignor: assignor.name)
@given(problem=problems())
def test_each_partition_has_one_member_that_subscribes(assignor: Assignor, problem: Problem) -> None:
    target = at_once(assignor.assign(problem))
    assert set(target) == {member.member_id for member in problem.members}
    given_out = [partition for owned in target.values() for partition in owned]
    subscribed = {topic_id for member in problem.members for topic_id in member.topics}
    assert sorted(given_out) == sorted(
        IdPartition(topic_id, partition)
        for topic_id, count in problem.partitions.items()
        if topic_id in subscribed
        for partition in range(count)
    )
    for member in problem.members:
        assert {partition.topic_id for partition in target[member.member_id]} <= member.topics
    assert at_once(assignor.assign(after(problem, target))) == target


@given(problem=problems())
def test_uniform_is_level(problem: Problem) -> None:
    """Nobody has two partitions more than somebody who could take one of them."""
    target = at_once(UniformAssignor().assign(problem))
    for rich in problem.members:
        for poor in problem.members:
            movable = [each for each in target[rich.member_id] if each.topic_id in poor.topics]
            assert not movable or len(target[rich.member_id]) <= len(target[poor.member_id]) + 1


@given(count=st.integers(1, 40), before=st.integers(1, 8), now=st.integers(1, 8))
def test_uniform_moves_no_more_than_it_must(count: int, before: int, now: int) -> None:
    problem = Problem(subscribers(before, A), {A: count})
    first = at_once(UniformAssignor().assign(problem))
    later = after(Problem(subscribers(now, A), {A: count}), first)
    second = at_once(UniformAssignor().assign(later))
    stayed = sum(len(first.get(member_id, frozenset()) & owned) for member_id, owned in second.items())
    each, more = divmod(count, now)
    shares = sorted((len(first.get(member.member_id, ())) for member in later.members), reverse=True)
    assert stayed == sum(min(had, each + (number < more)) for number, had in enumerate(shares))


def test_uniform_levels_large_topics_in_little_time() -> None:
    """A member comes that subscribes to one topic more: half of all partitions move."""
    alone = Subscriber("m0", "m0", frozenset({A}), of(A, *range(20_000)))
    target = at_once(
        UniformAssignor().assign(Problem([alone, Subscriber("m1", "m1", frozenset({A, B}))], {A: 20_000, B: 2}))
    )
    assert [len(owned) for owned in target.values()] == [10_001, 10_001]


def test_range_gives_neighbours() -> None:
    target = at_once(RangeAssignor().assign(Problem(subscribers(2, A, B), {A: 3, B: 4})))
    assert target == {"m0": of(A, 0, 1) | of(B, 0, 1), "m1": of(A, 2) | of(B, 2, 3)}
