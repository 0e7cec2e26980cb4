"""Roles are looked up in the answers of brokers; the first broker that knows decides."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tools.faults import roles
from tools.faults.cluster import State
from tools.faults.roles import PartitionView, Roles
from tools.faults.words import role_of
from tools.wire.security import PLAINTEXT

ENDED, PAUSED = 1, 2


class Cluster:
    """Broker 1 has ended, 2 is paused; 3 and 4 run."""

    broker_ids = (1, 2, 3, 4)

    def broker(self, broker: int) -> SimpleNamespace:
        return SimpleNamespace(state=lambda: {ENDED: State.ENDED, PAUSED: State.PAUSED}.get(broker, State.RUNNING))

    def address(self, broker: int) -> tuple[str, int]:
        return "host", broker

    security = PLAINTEXT


def partition(index: int, leader: int, replicas: Sequence[int] = (3, 4)) -> SimpleNamespace:
    return SimpleNamespace(partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=replicas[::-1])


def topic(error_code: int, *partitions: SimpleNamespace) -> SimpleNamespace:
    topics = [SimpleNamespace(error_code=error_code, partitions=list(partitions))]
    return SimpleNamespace(topics=topics, controller_id=3)


def roles_of(answers: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> Roles:
    def ask(address: tuple[str, int], *_: object) -> Any:
        assert address[1] not in (ENDED, PAUSED), "nobody answers there"
        return answers.get(address[1])

    monkeypatch.setattr(roles, "ask", ask)
    return Roles(Cluster())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({3: 4, 4: 3}, 4, id="the first answer counts"),
        pytest.param({4: 3}, 3, id="the first does not answer"),
        pytest.param({3: -1, 4: 3}, 3, id="the first knows none"),
        pytest.param({3: ENDED, 4: 3}, 3, id="the first names one that has ended"),
        pytest.param({3: PAUSED}, PAUSED, id="a paused one has its role still"),
        pytest.param({}, None, id="nobody answers"),
    ],
)
def test_the_broker_of_a_role(answers: dict[int, int], expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {broker: SimpleNamespace(controller_id=named, node_id=named) for broker, named in answers.items()}
    found = roles_of(named, monkeypatch)
    assert found.controller() == expected
    assert found.coordinator("g") == expected
    assert found.some("controller", [2, 1]) == [expected or 2]


def test_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = topic(0, partition(0, 4), partition(1, -1), partition(2, ENDED))
    assert set(roles_of({3: topic(0), 4: known}, monkeypatch).partitions("t")) == {0, 1, 2}, "3 has just started"
    found = roles_of({3: topic(3), 4: known}, monkeypatch)
    assert found.partitions("t") == {
        number: PartitionView(leader, (3, 4), (4, 3)) for number, leader in enumerate([4, None, ENDED])
    }
    assert [found.leader("t", number) for number in range(4)] == [4, None, None, None]
    assert [found.follower("t", number) for number in range(4)] == [3, 3, 3, None]
    assert roles_of({3: topic(3), 4: topic(0)}, monkeypatch).partitions("t") == {}


@pytest.mark.parametrize(
    ("role", "topics", "expected"),
    [
        ("leader of t-0", [(3, []), (3, [])], "there is no topic t"),
        ("leader of /-0", [(17, [])], "there is no topic /"),
        ("leader of t-0", [(3, []), (0, [partition(0, -1)])], None),
        ("leader of t-0", [(5, []), (5, [])], None),
        ("leader of t-2", [(0, [partition(0, 3), partition(1, 3)])], "there is no partition t-2: the topic has 2, numbered from 0"),
        ("follower of t-0", [(0, [partition(0, 3, [3])])], "t-0 has one replica, so nobody follows"),
        ("controller", [], None),
    ],
)  # fmt: skip
def test_a_role_that_nobody_can_have(
    role: str, topics: list[Any], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {broker: topic(code, *partitions) for broker, (code, partitions) in enumerate(topics, 3)}
    found = roles_of(answers, monkeypatch)
    assert found.why_never(role_of(role)) == expected


def test_a_broker_without_metadata_does_not_know_that_a_topic_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    started = SimpleNamespace(topics=topic(3).topics, controller_id=-1)
    assert roles_of({3: started}, monkeypatch).why_never(role_of("leader of t-0")) is None


@pytest.mark.parametrize(
    ("view", "followers", "is_in_sync"),
    [
        (PartitionView(1, (1, 2, 3), (3, 2, 1)), (2, 3), True),
        (PartitionView(1, (1, 2, 3), (1, 2)), (2, 3), False),
        (PartitionView(None, (1, 2), (1, 2)), (1, 2), False),
    ],
)
def test_a_partition(view: PartitionView, followers: tuple[int, ...], is_in_sync: bool) -> None:
    assert view.followers() == followers
    assert view.is_in_sync() is is_in_sync


@pytest.mark.parametrize(("role", "count"), [("broker", 1), ("two brokers", 2), ("all brokers", 4)])
def test_the_brokers_for_a_role_of_a_schedule(role: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert roles_of({}, monkeypatch).some(role, [4, 2, 1, 3]) == [4, 2, 1, 3][:count]
