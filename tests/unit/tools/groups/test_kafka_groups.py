"""While a coordinator or leader moves or loads, `KafkaGroups` asks again, for half a minute by default."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition
from tests.support.fake_brokers import FakeRequests, metadata, topic
from tests.support.fake_time import time_of
from tools.admin import kafka_admin
from tools.failures import AdminError
from tools.groups import kafka_groups
from tools.groups.group_views import CommittedView, GroupView, MemberView
from tools.groups.kafka_groups import OFFSETS_TOPIC, KafkaGroups
from tools.wire.cluster_requests import Question, Unsupported

IN_A_ROW = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
RETRIED = (*IN_A_ROW, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


class Script:
    """Answers with the outcomes of a group, or of an API, in turn, and repeats the last. Each request takes `seconds`."""

    def __init__(self, outcomes: dict[Any, list[Any]], clock: SimpleNamespace, seconds: float) -> None:
        self.outcomes = outcomes
        self.clock = clock
        self.seconds = seconds

    def __call__(self, question: Question) -> Any:
        key = question.to if question.to in self.outcomes else question.api_key
        if key not in self.outcomes:
            if question.api_key is ApiKey.METADATA:
                return metadata({1: ("h", 1)}, 1, topic(OFFSETS_TOPIC, 1), topic("t", 1, 1, 1))
            if question.api_key is ApiKey.FIND_COORDINATOR:
                return {"error_code": 0, "error_message": None, "node_id": 1, "host": "h", "port": 1}
            return Unsupported()
        outcomes = self.outcomes[key]
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        self.clock.now += min(self.seconds, kafka_groups.ATTEMPT_TIMEOUT_S)
        return outcome(question) if callable(outcome) else outcome


Make = Callable[..., tuple[KafkaGroups, FakeRequests]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = time_of(monkeypatch, kafka_groups)
    monkeypatch.setattr(kafka_admin, "time", clock)
    return clock


@pytest.fixture
def make(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(outcomes: dict[Any, list[Any]], seconds: float = 0.0) -> tuple[KafkaGroups, FakeRequests]:
        return KafkaGroups("127.0.0.1:1"), FakeRequests(Script(outcomes, clock, seconds)).install(monkeypatch)

    return made


def asked(requests: FakeRequests, api_key: ApiKey) -> list[Any]:
    return [question.to for question in requests.asked if question.api_key is api_key]


def deleted(code: int) -> Any:
    """A broker's answer to DeleteGroups; a connection that fails instead, if the code is not a broker's."""
    if code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION):
        return KafkaError(ErrorCode(code))
    return {"results": [{"group_id": "g", "error_code": code}]}


def described(code: int = 0, state: str = "Stable", members: tuple[Any, ...] = ()) -> Any:
    group = {"error_code": code, "group_id": "a", "group_state": state, "protocol_type": "consumer"}
    return {"groups": [group | {"protocol_data": "range", "members": members, "authorized_operations": 0}]}


def offsets(*rows: tuple[int, int, int, str | None], code: int = 0) -> Any:
    """(partition, offset, leader epoch, metadata)."""
    partitions = [
        {
            "partition_index": n,
            "committed_offset": at,
            "committed_leader_epoch": epoch,
            "metadata": said,
            "error_code": 0,
        }
        for n, at, epoch, said in rows
    ]
    return {"topics": [{"name": "t", "partitions": partitions}], "error_code": code}


@pytest.mark.parametrize("code", RETRIED)
def test_only_groups_with_a_retriable_error_are_requested_again(make: Make, code: int) -> None:
    done = deleted(0)
    groups, requests = make({"a": [done], "b": [deleted(code), deleted(code), done], "c": [deleted(68)]})
    outcomes = groups.delete_groups(["a", "b", "c"])
    assert asked(requests, ApiKey.DELETE_GROUPS) == ["a", "b", "c", "b", "b"]
    assert list(outcomes) == ["a", "b", "c"]
    assert outcomes["a"] is outcomes["b"] is None
    assert "stop its consumers first" in str(outcomes["c"])


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("seconds", [0.0, 3.0, 100.0])
def test_it_gives_up_after_half_a_minute_and_says_why(
    make: Make, clock: SimpleNamespace, code: int, seconds: float
) -> None:
    groups, _ = make({"a": [described(code) if code in IN_A_ROW else deleted(code)]}, seconds)
    with pytest.raises(AdminError, match=r"group 'a' cannot be described: .*; "):
        groups.describe_groups(["a"])
    assert 25 <= clock.now <= 37


def test_a_deletion_whose_answer_was_lost_counts_as_done(make: Make) -> None:
    groups, _ = make({"a": [deleted(ErrorCode.NETWORK_EXCEPTION), deleted(69)]})
    assert groups.delete_groups(["a"]) == {"a": None}
    groups, _ = make({"a": [deleted(69)]})
    assert groups.delete_groups(["a"])["a"] is not None


def committed(*codes: int) -> Any:
    rows = [{"partition_index": number, "error_code": code} for number, code in enumerate(codes)]
    return {"topics": [{"name": "t", "partitions": rows}]}


def test_a_commit_refused_for_some_partitions_is_repeated(make: Make) -> None:
    groups, requests = make({"a": [committed(16, 0), committed(0, 0)]})
    groups.alter_offsets("a", {T0: 5, T1: 6})
    assert asked(requests, ApiKey.OFFSET_COMMIT) == ["a", "a"]
    groups, _ = make({"a": [committed(3, 0)]})
    with pytest.raises(AdminError, match=r"some offsets of group 'a' were not reset: t-0: unknown topic or partition"):
        groups.alter_offsets("a", {T0: 5, T1: 6})
    groups, _ = make({"a": [committed(25, 25)]})
    with pytest.raises(AdminError, match=r"of group 'a' were not reset: .*; a consumer has joined in the meantime"):
        groups.alter_offsets("a", {T0: 5, T1: 6})


@pytest.mark.parametrize("moving", RETRIED)
def test_offsets_are_fetched_from_the_next_coordinator(make: Make, clock: SimpleNamespace, moving: ErrorCode) -> None:
    found = offsets((0, 5, 3, "note"), (1, 6, -1, None), (2, -1, -1, ""))
    groups, requests = make({"g": [KafkaError(moving), KafkaError(moving), found]})
    assert groups.committed_offsets(["g"]) == {"g": {T0: CommittedView(5, 3, "note"), T1: CommittedView(6, None, "")}}
    assert requests.attempts == 3
    groups, _ = make({"g": [KafkaError(moving)]})
    began = clock.now
    with pytest.raises(
        AdminError, match=r"the offsets of group 'g' cannot be fetched: .*(ottla cluster health|try again)"
    ):
        groups.committed_offsets(["g"])
    assert 29 <= clock.now - began <= 31


def test_a_refusal_is_not_repeated(make: Make) -> None:
    groups, requests = make({"g": [KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)]})
    with pytest.raises(AdminError):
        groups.committed_offsets(["g"])
    assert requests.attempts == 1


def test_offsets_are_deleted_one_by_one(make: Make) -> None:
    rows = [{"partition_index": number, "error_code": code} for number, code in ((0, 0), (1, 86))]
    groups, _ = make({"g": [{"error_code": 0, "topics": [{"name": "t", "partitions": rows}]}]})
    found = groups.delete_group_offsets("g", [T0, T1])
    assert found[T0] is None
    assert found[T1] is not None
    assert found[T1][0] == "GROUP_SUBSCRIBED_TO_TOPIC"
    assert "while the consumer group is actively subscribed" in found[T1][1]


def listed(code: int = 0) -> Any:
    return KafkaError(ErrorCode(code)) if code else {"error_code": 0, "groups": []}


def test_a_list_is_repeated_while_a_broker_loads_its_groups(make: Make, clock: SimpleNamespace) -> None:
    groups, requests = make({ApiKey.LIST_GROUPS: [listed(14), listed()]})
    assert groups.list_groups() == ([], [])
    assert len(asked(requests, ApiKey.LIST_GROUPS)) == 2
    groups, _ = make({ApiKey.LIST_GROUPS: [listed(14)]})
    began = clock.now
    _, problems = groups.list_groups(timeout_s=2.0)
    assert problems == ["coordinator load in progress"]
    assert clock.now - began <= 2.0


@pytest.mark.parametrize(
    ("leaders", "lists"),
    [([1, 1], 1), ([None, None, 2, 2], 2), ([1, None, 2, 2], 2), ([1, 2, 2, 2], 2), ([None], None)],
)
def test_a_list_is_complete_only_if_no_coordinator_moved_during_it(
    make: Make, leaders: list[int | None], lists: int | None
) -> None:
    """`leaders`: the leader of the only partition of `__consumer_offsets` at each look at the cluster.

    The tool looks before and after each list; the last leader repeats.
    `lists`: how many lists it makes. None: it makes lists until the time-out, and reports a problem.
    """
    views = [metadata({1: ("h", 1)}, 1, topic(OFFSETS_TOPIC, leader)) for leader in leaders]
    groups, requests = make({ApiKey.METADATA: views, ApiKey.LIST_GROUPS: [listed()]})
    _, problems = groups.list_groups()
    count = len(asked(requests, ApiKey.LIST_GROUPS))
    if lists is None:
        assert count > 2
        assert problems == ["__consumer_offsets-0 has no leader, or its leader keeps changing"]
    else:
        assert (count, problems) == (lists, [])


def test_members_and_their_partitions(make: Make) -> None:
    assigned = b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\2\0\0\0\0\xff\xff\xff\xff"
    members = [
        {
            "member_id": name,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "member_metadata": b"",
            "member_assignment": data,
        }
        for name, data in (("n", b"\0\0\0\0\0\1\0"), ("m", assigned))
    ]
    groups, _ = make({"a": [described(members=tuple(members))]})
    (view,) = groups.describe_groups(["a"])
    assert [(member.consumer_id, member.assignment) for member in view.members] == [("m", (T0, T2)), ("n", ())]
    assert (view.state, view.assignor, view.coordinator and view.coordinator.id) == ("Stable", "range", 1)


def test_a_group_that_only_the_newer_protocol_knows(make: Make) -> None:
    group = {
        "error_code": 0,
        "error_message": None,
        "group_id": "a",
        "group_state": "Stable",
        "assignor_name": "uniform",
    }
    topic = {"topic_id": uuid.uuid4(), "topic_name": "t", "partitions": (2, 0)}
    member = {
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 4,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
        "assignment": {"topic_partitions": (topic,)},
        "target_assignment": {"topic_partitions": (topic | {"partitions": (0,)},)},
    }
    epochs = {"group_epoch": 5, "assignment_epoch": 5}
    newer = {"groups": [group | epochs | {"members": (member,), "authorized_operations": 0}]}
    groups, _ = make({"a": [described(state="Dead"), newer]})
    seen = MemberView("m", None, "c", "/h", (T0, T2), 4, (T0,))
    assert groups.describe_groups(["a"]) == [GroupView("a", "Stable", "uniform", _any_node(groups), (seen,), 5, 5)]
    groups, _ = make({ApiKey.DESCRIBE_GROUPS: [described(state="Dead")]})
    assert groups.describe_groups(["a"])[0].state == "Dead"


def _any_node(groups: KafkaGroups) -> Any:
    return groups.cluster().nodes[0]


def test_offsets_of_partitions_with_a_leader(make: Make) -> None:
    def row(number: int, code: int, offset: int) -> dict[str, Any]:
        return {"partition_index": number, "error_code": code, "timestamp": -1, "offset": offset, "leader_epoch": 0}

    def answer(*rows: dict[str, Any]) -> Any:
        return {"topics": [{"name": "t", "partitions": rows}]}

    groups, requests = make({ApiKey.LIST_OFFSETS: [answer(row(0, 6, -1), row(1, 0, 7)), answer(row(0, 0, 5))]})
    unknown = TopicPartition("t", 9)
    assert groups.latest_offsets([T0, T1, unknown]) == {T0: 5, T1: 7}
    assert asked(requests, ApiKey.LIST_OFFSETS) == [1, 1]
    groups, _ = make({ApiKey.LIST_OFFSETS: [answer(row(0, 0, -1), row(1, 0, 7))]})
    assert groups.offsets_at([T0, T1], 1) == {T0: -1, T1: 7}, "no record is that recent"
    groups, _ = make({ApiKey.LIST_OFFSETS: [answer(row(0, 56, -1), row(1, 6, -1)), answer(row(1, 0, 7))]})
    with pytest.raises(AdminError, match="the offsets of t-0 cannot be listed"):
        groups.offsets_at([T0, T1], 1)
    groups, _ = make({ApiKey.LIST_OFFSETS: [answer(row(0, 29, -1))]})
    with pytest.raises(AdminError, match="the offsets of t-0 cannot be listed: topic authorization failed"):
        groups.earliest_offsets([T0])


@pytest.mark.parametrize("data", [b"\0\0\x7f\xff\xff\xff\xff\xfa", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"])
def test_a_hostile_assignment_is_none(data: bytes) -> None:
    """A negative length would move backwards, for as many topics as are announced."""
    assert kafka_groups._assignment(data + bytes(100)) == []
