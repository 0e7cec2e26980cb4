"""KafkaPythonAdmin retries with a new client while the coordinator moves or loads, and passes on what a broker says of a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition as ClientTopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    NotCoordinatorError,
    UnsupportedVersionError,
)
from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    DescribeConfigsResponse,
    ElectLeadersResponse,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsResponse,
)
from kafka.structs import OffsetAndMetadata

from protocol.types import TopicPartition
from tests.support.fake_time import time_of
from tools.admin import kafka_python_admin
from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, TOPICS, Entity
from tools.admin.kafka_python_admin import KafkaPythonAdmin
from tools.failures import AdminError, NotServed

MOVING = (NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError, KafkaConnectionError)
OFFSETS = {
    ClientTopicPartition("t", 0): OffsetAndMetadata(5, "note", 3),
    ClientTopicPartition("t", 1): OffsetAndMetadata(6, None, -1),
    ClientTopicPartition("t", 2): OffsetAndMetadata(-1, "", -1),
}

Make = Callable[[list[Any]], tuple[KafkaPythonAdmin, list[str]]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return time_of(monkeypatch, kafka_python_admin)


@pytest.fixture
def make(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Make:
    """An adapter that gets the answers in turn (the last one repeats), and the log of what its clients did."""

    def made(answers: list[Any]) -> tuple[KafkaPythonAdmin, list[str]]:
        done: list[str] = []

        def list_group_offsets(groups: list[str]) -> Any:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            done.append("asked")
            if isinstance(answer, type):
                raise answer("no")
            return dict.fromkeys(groups, answer)

        client = SimpleNamespace(list_group_offsets=list_group_offsets, close=lambda: done.append("closed"))
        monkeypatch.setattr(KafkaPythonAdmin, "_connected", lambda _: client)
        return KafkaPythonAdmin("127.0.0.1:1"), done

    return made


@pytest.mark.parametrize("moving", MOVING)
def test_a_coordinator_that_moves_is_looked_up_again(make: Make, moving: type[Exception]) -> None:
    admin, done = make([moving, moving, OFFSETS])
    assert admin.group_offsets("g") == {
        TopicPartition("t", 0): (5, 3, "note"),
        TopicPartition("t", 1): (6, None, ""),
    }
    assert done == ["asked", "closed", "asked", "closed", "asked"]


@pytest.mark.parametrize("moving", MOVING)
def test_retries_end_after_half_a_minute(make: Make, clock: SimpleNamespace, moving: type[Exception]) -> None:
    admin, _ = make([moving])
    with pytest.raises(AdminError, match=r"the offsets of group 'g' cannot be fetched: .*ottla cluster health"):
        admin.group_offsets("g")
    assert 29 <= clock.now <= 31


@pytest.mark.parametrize(
    ("refusal", "raised"), [(GroupAuthorizationFailedError, AdminError), (UnsupportedVersionError, NotServed)]
)
def test_a_refusal_is_not_retried(make: Make, refusal: type[Exception], raised: type[AdminError]) -> None:
    admin, done = make([refusal])
    with pytest.raises(raised):
        admin.group_offsets("g")
    assert done == ["asked"]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], KafkaPythonAdmin]:
    """An adapter with the real client, which is not connected and gets this answer to every request."""

    def made(answer: Any) -> KafkaPythonAdmin:
        async def send(_request: Any, node_id: Any = None) -> Any:
            return answer

        client = kafka_python_admin._Client.__new__(kafka_python_admin._Client)
        client.config = {"request_timeout_ms": 1000}
        client._controller_id = 1
        client._manager = SimpleNamespace(
            send=send, run=lambda function, *arguments: asyncio.run(function(*arguments)), broker_version_data=None
        )
        monkeypatch.setattr(KafkaPythonAdmin, "_connected", lambda _: client)
        return KafkaPythonAdmin("127.0.0.1:1")

    return made


Answered = Callable[[Any], KafkaPythonAdmin]
ALL_BROKERS = Entity(BROKERS, ENTITY_DEFAULT)
SAID = "broker 9 is not in the\ncluster"


def test_a_refused_move_has_the_controllers_reason(answered: Answered) -> None:
    topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    rows = [
        topic.ReassignablePartitionResponse(partition_index=number, error_code=code, error_message=said)
        for number, code, said in ((0, 39, SAID), (1, 85, None), (2, 0, None))
    ]
    answer = AlterPartitionReassignmentsResponse(
        version=0, throttle_time_ms=0, error_code=0, error_message=None, responses=[topic(name="t", partitions=rows)]
    )
    partitions = [TopicPartition("t", number) for number in range(3)]
    found = answered(answer).alter_reassignments({partition: [1] for partition in partitions})
    assert found == {
        partitions[0]: "t-0: broker 9 is not in the cluster",
        partitions[1]: "t-1: No partition reassignment is in progress",
        partitions[2]: None,
    }


@pytest.mark.parametrize("kind", [AlterPartitionReassignmentsResponse, ListPartitionReassignmentsResponse])
def test_a_request_that_the_controller_refuses_has_its_reason(answered: Answered, kind: Any) -> None:
    rows = {"responses": []} if kind is AlterPartitionReassignmentsResponse else {"topics": []}
    admin = answered(kind(version=0, throttle_time_ms=0, error_code=42, error_message=SAID, **rows))
    asked = partial(admin.alter_reassignments, {}) if "responses" in rows else admin.reassignments
    with pytest.raises(AdminError, match="broker 9 is not in the cluster"):
        asked()


def test_a_failed_election_has_the_controllers_reason(answered: Answered) -> None:
    result = ElectLeadersResponse.ReplicaElectionResult
    row = result.PartitionResult(partition_id=0, error_code=83, error_message=SAID)
    answer = ElectLeadersResponse(
        version=1,
        throttle_time_ms=0,
        error_code=0,
        replica_election_results=[result(topic="t", partition_result=[row])],
    )
    partition = TopicPartition("t", 0)
    found = answered(answer).elect_leaders(unclean=False, partitions=[partition])
    assert found == {partition: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", "broker 9 is not in the cluster")}


@pytest.mark.parametrize(
    ("said", "reason"), [(SAID, "broker 9 is not in the cluster"), (None, "configuration is invalid")]
)
def test_refused_configs_have_the_brokers_reason(answered: Answered, said: str | None, reason: str) -> None:
    response = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    row = response(error_code=40, error_message=said, resource_type=4, resource_name="")
    admin = answered(IncrementalAlterConfigsResponse(version=0, throttle_time_ms=0, responses=[row]))
    with pytest.raises(AdminError) as refused:
        admin.alter_configs(ALL_BROKERS, {"x": "1"})
    assert str(refused.value).replace("Conf", "conf") == f"configs of {ALL_BROKERS} were not changed: {reason}"


@pytest.mark.parametrize(("code", "is_refused"), [(3, False), (29, True)])
def test_configs_that_are_not_shown_are_refused_but_a_topic_that_is_gone_has_none(
    answered: Answered, code: int, is_refused: bool
) -> None:
    row = DescribeConfigsResponse.DescribeConfigsResult(
        error_code=code, error_message=SAID, resource_type=2, resource_name="t", configs=[]
    )
    admin = answered(DescribeConfigsResponse(version=1, throttle_time_ms=0, results=[row]))
    entity = Entity(TOPICS, "t")
    if is_refused:
        with pytest.raises(AdminError, match="broker 9 is not in the cluster"):
            admin.describe_configs([entity])
    else:
        assert admin.describe_configs([entity]) == {entity: {}}
