"""KafkaAdmin passes on what a broker says of a refusal, with advice, and repeats what may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition
from tests.support.fake_brokers import Answers, FakeRequests, failing, metadata, topic
from tests.support.fake_time import time_of
from tools.admin import kafka_admin
from tools.admin.config_values import BROKERS, ENTITY_DEFAULT, TOPICS, Entity
from tools.admin.kafka_admin import KafkaAdmin
from tools.admin.reassign_plan import Replica
from tools.failures import AdminError, NotServed, TopicExists
from tools.wire.cluster_requests import Question, Unsupported
from tools.wire.cluster_view import Unreachable

ALL_BROKERS = Entity(BROKERS, ENTITY_DEFAULT)
SAID = "broker 9 is not in the\ncluster"
REASON = "broker 9 is not in the cluster"
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))

Make = Callable[[Any], tuple[KafkaAdmin, FakeRequests]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return time_of(monkeypatch, kafka_admin)


@pytest.fixture
def make(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A client whose brokers answer every question like this."""

    def made(answers: Any) -> tuple[KafkaAdmin, FakeRequests]:
        said: Answers = answers if callable(answers) else lambda _: answers
        return KafkaAdmin("127.0.0.1:1"), FakeRequests(said).install(monkeypatch)

    return made


def moves(*rows: tuple[int, int, str | None], code: int = 0, said: str | None = None) -> dict[str, Any]:
    partitions = [{"partition_index": n, "error_code": error, "error_message": text} for n, error, text in rows]
    return {"error_code": code, "error_message": said, "responses": [{"name": "t", "partitions": partitions}]}


def test_a_refused_move_has_the_controllers_reason(make: Make) -> None:
    admin, _ = make(moves((0, 39, SAID), (1, 85, None), (2, 0, None)))
    assert admin.alter_reassignments({partition: [1] for partition in (T0, T1, T2)}) == {
        T0: f"t-0: {REASON}",
        T1: "t-1: No partition reassignment is in progress",
        T2: None,
    }


def test_a_request_that_the_controller_refuses_has_its_reason(make: Make) -> None:
    refused = KafkaError(ErrorCode.INVALID_REQUEST, SAID)
    admin, requests = make(refused)
    for ask in (partial(admin.alter_reassignments, {}), admin.reassignments):
        with pytest.raises(AdminError, match=REASON):
            ask()
    assert requests.attempts == 2


def test_a_failed_election_has_the_controllers_reason(make: Make) -> None:
    row = {"partition_id": 0, "error_code": 83, "error_message": SAID}
    results = [{"topic": "t", "partition_result": [row, {**row, "partition_id": 1, "error_code": 0}]}]
    admin, _ = make({"error_code": 0, "replica_election_results": results})
    found = admin.elect_leaders(unclean=False, partitions=[T0, T1])
    assert found == {T0: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", REASON), T1: None}


@pytest.mark.parametrize(("said", "reason"), [(SAID, REASON), (None, "invalid config")])
def test_refused_configs_have_the_brokers_reason(make: Make, said: str | None, reason: str) -> None:
    row = {"error_code": 40, "error_message": said, "resource_type": 4, "resource_name": ""}
    admin, _ = make({"responses": [row]})
    with pytest.raises(AdminError) as refused:
        admin.alter_configs(ALL_BROKERS, {"x": "1"})
    assert str(refused.value) == f"configs of {ALL_BROKERS} were not changed: {reason}"


@pytest.mark.parametrize(("code", "is_refused"), [(3, False), (29, True)])
def test_configs_that_are_not_shown_are_refused_but_a_topic_that_is_gone_has_none(
    make: Make, code: int, is_refused: bool
) -> None:
    row = {"error_code": code, "error_message": SAID, "resource_type": 2, "resource_name": "t", "configs": []}
    admin, _ = make({"results": [row]})
    entity = Entity(TOPICS, "t")
    if is_refused:
        with pytest.raises(AdminError, match=REASON):
            admin.describe_configs([entity])
    else:
        assert admin.describe_configs([entity]) == {entity: {}}


def created(code: int, said: str | None = SAID) -> dict[str, Any]:
    row = {"name": "t", "topic_id": None, "error_code": code, "error_message": said, "num_partitions": -1}
    return {"topics": [row | {"topic_config_error_code": 0, "replication_factor": -1, "configs": None}]}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (37, f"topic 't' was not created: {REASON}; --partitions must be at least 1"),
        (38, f"topic 't' was not created: {REASON}; use --replication-factor 1 to 2, or start more brokers"),
        (29, f"topic 't' was not created: {REASON}"),
    ],
)
def test_a_refused_topic_has_the_reason_and_advice(make: Make, code: int, text: str) -> None:
    def answers(question: Question) -> dict[str, Any]:
        return metadata({1: ("h", 1), 2: ("h", 2)}, 1) if question.api_key is ApiKey.METADATA else created(code)

    admin, _ = make(answers)
    with pytest.raises(AdminError) as refused:
        admin.create_topic("t")
    assert str(refused.value) == text


def test_a_topic_that_exists_or_does_not(make: Make) -> None:
    with pytest.raises(TopicExists):
        make(created(36))[0].create_topic("t")
    for code, is_deleted in ((0, True), (3, False)):
        admin, _ = make({"responses": [{"name": "t", "error_code": code, "error_message": None}]})
        assert admin.delete_topic("t") is is_deleted


def test_only_what_was_not_carried_out_is_sent_again_or_what_may_be(make: Make, clock: SimpleNamespace) -> None:
    for code, is_repeated in (
        (ErrorCode.NOT_CONTROLLER, True),
        (ErrorCode.BROKER_NOT_AVAILABLE, True),
        (ErrorCode.NETWORK_EXCEPTION, False),
        (ErrorCode.REQUEST_TIMED_OUT, False),
    ):
        admin, requests = make(failing(KafkaError(code)))
        began = clock.now
        with pytest.raises(AdminError, match="topic 't' was not created: ") as refused:
            admin.create_topic("t")
        assert (requests.attempts > 1) is is_repeated
        assert ("may still be created" in str(refused.value)) is not is_repeated
        assert clock.now - began == pytest.approx(30 if is_repeated else 0, abs=1)
        with pytest.raises(
            AdminError, match=r"the reassignments were not changed: .*; (see `ottla cluster health`|they may still)"
        ):
            admin.alter_reassignments({T0: [1]})
        attempts = requests.attempts
        with pytest.raises(AdminError):
            admin.reassignments(patience_s=0)
        assert requests.attempts == attempts + 1


def test_an_answer_after_some_time(make: Make) -> None:
    left = [KafkaError(ErrorCode.NOT_CONTROLLER), created(41, None), created(0, None)]
    admin, requests = make(lambda _: left.pop(0))
    admin.create_topic("t")
    assert requests.attempts == 3


def test_configs_of_a_broker_that_starts_are_set_when_it_answers(make: Make, clock: SimpleNamespace) -> None:
    row = {"error_code": 0, "error_message": None, "resource_type": 4, "resource_name": "2"}
    left = [KafkaError(code) for code in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)]
    admin, requests = make(lambda _: left.pop(0) if left else {"responses": [row]})
    admin.alter_configs(Entity(BROKERS, "2"), {"x": "1"})
    assert requests.attempts == 3
    admin, _ = make(failing(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)))
    began = clock.now
    with pytest.raises(AdminError, match="is the broker up"):
        admin.alter_configs(Entity(BROKERS, "2"), {"x": "1"})
    assert clock.now - began == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("first", "is_cancelled"),
    [(ErrorCode.REQUEST_TIMED_OUT, True), (ErrorCode.NETWORK_EXCEPTION, True), (ErrorCode.NOT_CONTROLLER, False)],
)
def test_a_cancel_whose_answer_was_lost_is_carried_out(make: Make, first: ErrorCode, is_cancelled: bool) -> None:
    left: list[Any] = [KafkaError(first), moves((0, 85, None), (1, 85, None))]
    admin, _ = make(lambda _: left.pop(0))
    outcomes = admin.alter_reassignments({T0: None, T1: [1]})
    assert (outcomes[T0] is None) is is_cancelled
    assert outcomes[T1] is not None


def test_a_cancel_counts_by_its_own_row(make: Make) -> None:
    for first, second, is_cancelled in (
        (moves((0, 0, None), (1, 41, None)), moves((0, 85, None), (1, 0, None)), True),
        (moves((0, 85, None), (1, 7, None)), moves((0, 85, None), (1, 0, None)), False),
    ):
        left = [first, second]
        admin, _ = make(lambda _, left=left: left.pop(0))
        outcomes = admin.alter_reassignments({T0: None, T1: None})
        assert (outcomes[T0] is None, outcomes[T1] is None) == (is_cancelled, True)


def test_an_election_keeps_what_an_earlier_request_elected(make: Make) -> None:
    def results(*codes: int) -> dict[str, Any]:
        rows = [{"partition_id": n, "error_code": code, "error_message": None} for n, code in enumerate(codes)]
        return {"error_code": 0, "replica_election_results": [{"topic": "t", "partition_result": rows}]}

    left = [results(0, 7), results(84, 0)]
    admin, _ = make(lambda _: left.pop(0))
    found = admin.elect_leaders(unclean=False, partitions=[T0, T1, T2])
    assert (found[T0], found[T1]) == (None, None)
    assert found[T2] == ("UNKNOWN_SERVER_ERROR", "the broker's answer does not name it")


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda admin: admin.create_topic("t"), {"topics": []}),
        (lambda admin: admin.describe_configs([Entity(TOPICS, "t")]), {"results": []}),
        (lambda admin: admin.alter_configs(ALL_BROKERS, {"x": "1"}), {"responses": []}),
    ],
)
def test_an_answer_without_its_row_is_an_error(make: Make, ask: Callable[[KafkaAdmin], Any], answer: Any) -> None:
    admin, _ = make(answer)
    with pytest.raises(AdminError, match="the broker's answer has 0 rows, not 1"):
        ask(admin)


def test_a_topic_that_may_not_be_read_is_an_error(make: Make) -> None:
    configs = {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "t", "configs": []}

    def answers(question: Question) -> dict[str, Any]:
        is_metadata = question.api_key is ApiKey.METADATA
        return metadata({1: ("h", 1)}, 1, topic("t") | {"error_code": 29}) if is_metadata else {"results": [configs]}

    admin, _ = make(answers)
    with pytest.raises(AdminError, match="topic 't' cannot be described: topic authorization failed"):
        admin.describe_topics(["t"])


@pytest.mark.parametrize(
    ("problem", "raised", "text"),
    [
        (Unsupported(), NotServed, "the reassignments cannot be listed: this cluster does not support that request"),
        (Unreachable(), AdminError, "no broker answers at 127.0.0.1:1; check the address"),
    ],
)
def test_failures_of_the_cluster(make: Make, problem: Exception, raised: type[AdminError], text: str) -> None:
    admin, _ = make(problem)
    with pytest.raises(raised, match=text):
        admin.reassignments()


def test_log_directories_of_brokers_that_do_not_answer_are_left_out(make: Make) -> None:
    rows = [
        {"partition_index": 0, "partition_size": size, "offset_lag": 0, "is_future_key": is_future}
        for size, is_future in ((7, False), (3, True))
    ]
    directories = [
        {
            "error_code": 0,
            "log_dir": f"/{n}",
            "topics": [{"name": "t", "partitions": [row]}],
            "total_bytes": 0,
            "usable_bytes": 0,
        }
        for n, row in enumerate(rows)
    ]

    def answers(question: Question) -> Any:
        return (
            KafkaError(ErrorCode.NETWORK_EXCEPTION) if question.to == 2 else {"error_code": 0, "results": directories}
        )

    admin, _ = make(answers)
    assert admin.replica_sizes([1, 2], [T0]) == {(1, T0): 7}
    assert admin.log_directories([Replica(T0, 1), Replica(T0, 2)]) == {Replica(T0, 1): ("/0", "/1")}
    assert admin.replicas_without_log([Replica(T0, 2), Replica(T1, 1), Replica(T0, 1)]) == {Replica(T1, 1)}


def test_how_it_connects(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\nsocket.keepalive.enable=true\nbootstrap.servers=other:1\n")
    admin = KafkaAdmin("a,b:1", file)
    assert admin._bootstrap == [("a", 9092), ("b", 1)]
    assert admin._client.name == "me"
    file.write_text("ssl.cipher.suites=x\n")
    with pytest.raises(AdminError, match=r"client.properties: line 1: ssl.cipher.suites: not supported"):
        KafkaAdmin("a", file)
    with pytest.raises(AdminError, match="'a:x' is not host:port"):
        KafkaAdmin("a:x")


def test_every_request_can_be_written_in_all_its_versions(make: Make) -> None:
    """The answers do not matter here."""
    admin, requests = make(failing(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)))
    replica, topics = Replica(T0, 1), [Entity(TOPICS, "t"), Entity(BROKERS, "1"), ALL_BROKERS]
    asks: list[Callable[[], object]] = [
        admin.cluster,
        partial(admin.create_topic, "t", replica_assignment=[[1, 2]], configs={"k": "v"}),
        partial(admin.delete_topic, "t"),
        partial(admin.create_partitions, "t", 2, [[1]]),
        partial(admin.describe_configs, topics),
        partial(admin.alter_configs, ALL_BROKERS, {"k": None, "l": "v"}),
        admin.reassignments,
        partial(admin.alter_reassignments, {T0: [1], T1: None}),
        partial(admin.elect_leaders, unclean=True, partitions=None),
        partial(admin.elect_leaders, unclean=False, partitions=[T0, T1]),
        partial(admin.alter_log_directories, {replica: "/d"}),
    ]
    for ask in asks:
        with pytest.raises(AdminError, match="cluster authorization failed"):
            ask()
    assert admin.log_directories([replica]) == {}
    assert {question.api_key for question in requests.asked} >= {ApiKey.ELECT_LEADERS, ApiKey.DESCRIBE_LOG_DIRS}
