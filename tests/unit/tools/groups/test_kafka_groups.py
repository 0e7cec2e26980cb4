"""While a coordinator or leader moves or loads, `KafkaGroups` repeats the request with a new client, for half a minute by default."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.fake_time import time_of
from tools.admin.cluster_view import ClusterView
from tools.admin.topic_views import PartitionView
from tools.failures import AdminError
from tools.groups import kafka_groups
from tools.groups.kafka_groups import KafkaGroups

RETRIED = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)


def answered(outcome: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(outcome, int):
        future.set_exception(KafkaException(KafkaError(outcome)))
    else:
        future.set_result(outcome)
    return future


class FakeClient:
    """Answers with each group's outcomes in turn, and repeats the last. An int is an error code. Each request takes `seconds`."""

    def __init__(self, outcomes: dict[str, list[Any]], clock: SimpleNamespace, seconds: float = 0.0) -> None:
        self.outcomes = outcomes
        self.clock = clock
        self.seconds = seconds
        self.asked: list[list[str]] = []

    def delete_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.append(groups)
        self.clock.now += min(self.seconds, request_timeout)
        return {group: self._next(group) for group in groups}

    describe_consumer_groups = delete_consumer_groups

    def alter_consumer_group_offsets(self, requests: list[Any], request_timeout: float) -> dict[str, Future[Any]]:
        return self.delete_consumer_groups([request.group_id for request in requests], request_timeout)

    def list_consumer_groups(self, request_timeout: float) -> Future[Any]:
        return self.delete_consumer_groups(["all"], request_timeout)["all"]

    def _next(self, group: str) -> Future[Any]:
        outcomes = self.outcomes[group]
        return answered(outcomes.pop(0) if len(outcomes) > 1 else outcomes[0])


def offsets_led_by(leader: int | None) -> ClusterView:
    return ClusterView(1, (), {kafka_groups.OFFSETS_TOPIC: (PartitionView(0, leader, (1, 2), (1, 2)),)})


Make = Callable[..., tuple[KafkaGroups, FakeClient]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return time_of(monkeypatch, kafka_groups)


@pytest.fixture
def make(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(outcomes: dict[str, list[Any]], seconds: float = 0.0) -> tuple[KafkaGroups, FakeClient]:
        client = FakeClient(outcomes, clock, seconds)
        groups = KafkaGroups("127.0.0.1:1")
        monkeypatch.setattr(groups, "_client", client)
        monkeypatch.setattr(groups, "_connect_anew", lambda: None)
        monkeypatch.setattr(groups, "cluster", lambda: offsets_led_by(1))
        return groups, client

    return made


@pytest.mark.parametrize("code", RETRIED)
def test_only_groups_with_a_retriable_error_are_requested_again(make: Make, code: int) -> None:
    groups, client = make({"a": [None], "b": [code, code, None], "c": [KafkaError.NON_EMPTY_GROUP]})
    outcomes = groups.delete_groups(["a", "b", "c"])
    assert client.asked == [["a", "b", "c"], ["b"], ["b"]]
    assert list(outcomes) == ["a", "b", "c"]
    assert outcomes["a"] is outcomes["b"] is None
    assert "stop its consumers first" in str(outcomes["c"])


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("seconds", [0.0, 3.0, 100.0])
def test_it_gives_up_after_half_a_minute_and_says_why(
    make: Make, clock: SimpleNamespace, code: int, seconds: float
) -> None:
    groups, _ = make({"a": [code]}, seconds)
    with pytest.raises(AdminError, match="group 'a' cannot be described: ") as refused:
        groups.describe_groups(["a"])
    assert 25 <= clock.now <= 30 + seconds
    assert clock.now <= 31 + min(seconds, 3.0)
    if code not in (KafkaError._TRANSPORT,):
        assert "; " in str(refused.value)


def test_a_deletion_whose_answer_was_lost_counts_as_done(make: Make) -> None:
    groups, _ = make({"a": [KafkaError._TRANSPORT, KafkaError.GROUP_ID_NOT_FOUND]})
    assert groups.delete_groups(["a"]) == {"a": None}
    groups, _ = make({"a": [KafkaError.GROUP_ID_NOT_FOUND]})
    assert groups.delete_groups(["a"])["a"] is not None


def test_a_commit_refused_for_some_partitions_is_repeated(make: Make) -> None:
    moving = SimpleNamespace(topic="t", partition=0, error=KafkaError(KafkaError.NOT_COORDINATOR))
    done = SimpleNamespace(topic="t", partition=0, error=None)
    groups, client = make({"a": [SimpleNamespace(topic_partitions=[each]) for each in (moving, done)]})
    groups.alter_offsets("a", {kafka_groups.TopicPartition("t", 0): 5})
    assert len(client.asked) == 2


@pytest.mark.parametrize("wrapped", [lambda error: error, KafkaException], ids=["error", "exception"])
def test_a_list_is_repeated_while_a_broker_loads_its_groups(
    make: Make, clock: SimpleNamespace, wrapped: Callable[[KafkaError], Any]
) -> None:
    loading = wrapped(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
    groups, client = make({"all": [SimpleNamespace(valid=[], errors=[loading]), SimpleNamespace(valid=[], errors=[])]})
    assert groups.list_groups() == ([], [])
    assert len(client.asked) == 2
    groups, _ = make({"all": [SimpleNamespace(valid=[], errors=[loading])]})
    began = clock.now
    _, problems = groups.list_groups(timeout_s=2.0)
    assert len(problems) == 1
    assert clock.now - began <= 2.0


@pytest.mark.parametrize(
    ("leaders", "lists"),
    [([1, 1], 1), ([None, None, 2, 2], 2), ([1, None, 2, 2], 2), ([1, 2, 2, 2], 2), ([None], None)],
)
def test_a_list_is_complete_only_if_no_coordinator_moved_during_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, leaders: list[int | None], lists: int | None
) -> None:
    """`leaders`: the leader of the only partition of `__consumer_offsets` at each look at the cluster.

    The tool looks before and after each list; the last leader repeats.
    `lists`: how many lists it makes. None: it makes lists until the time-out, and reports a problem.
    """
    groups, client = make({"all": [SimpleNamespace(valid=[], errors=[])]})
    monkeypatch.setattr(groups, "cluster", lambda: offsets_led_by(leaders.pop(0) if len(leaders) > 1 else leaders[0]))
    _, problems = groups.list_groups()
    if lists is None:
        assert len(client.asked) > 2
        assert problems == ["__consumer_offsets-0 has no leader, or its leader keeps changing"]
    else:
        assert (len(client.asked), problems) == (lists, [])
