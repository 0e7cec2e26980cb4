"""The outage table: its text, its figures, and the options that it refuses."""

from __future__ import annotations

import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from protocol.zk.session import ConnectionLoss
from tools.bench import outages
from tools.bench.outage_faults import FAULTS, Scene
from tools.bench.outages import Row, main, table
from tools.faults import waiting
from tools.faults.roles import PartitionView
from tools.faults.verdict import Verdict


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "kill,earthquake"], "unknown fault earthquake: the faults are kill, "),
        (["--faults", ","], "unknown fault (none given): the faults are kill, "),
        (["--samples", "0"], "x>=1"),
        (["--seed", "soon"], "not a valid integer"),
    ],
)
def test_bad_options_are_refused_with_a_reason(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_table_compares_our_times_with_the_goal_and_kafka() -> None:
    rows = [
        Row(FAULTS["kill"], outages=[0.5, 0.1, 0.2], healed=[1.0, 2.0, 3.0], records=Verdict(doubled=2)),
        Row(FAULTS["session"], outages=[0.25], healed=[0.0], records=Verdict(lost=("record-1",), failed=("refused",))),
    ]
    head, kill, session = table(rows).splitlines()
    assert head.split() == ["FAULT", "OUTAGE", "GOAL", "KAFKA", "HEALED", "GOAL", "KAFKA", "LOST", "DOUBLED"]
    assert kill.split("  ")[0] == "SIGKILL of a leader"
    assert "0.20 / 0.50" in kill
    assert "2.00 / 3.00" in kill
    assert kill.split()[-2:] == ["0", "2"]
    assert session.split()[-2:] == ["2", "0"]


class Admin:
    """Each CreateTopics fails with the next of `errors`; afterwards it succeeds."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.asked = 0

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        self.asked += 1
        result: Future[None] = Future()
        if self.errors:
            result.set_exception(KafkaException(KafkaError(self.errors.pop(0), "said so")))
        else:
            result.set_result(None)
        return {topic.topic: result for topic in topics}


class FixedRoles:
    """Brokers 1 (controller) and 2, both in sync; `leaders` has the leader of each partition."""

    def __init__(self, *leaders: int | None) -> None:
        self.views = {number: PartitionView(leader, (1, 2), (1, 2)) for number, leader in enumerate(leaders)}

    def partitions(self, topic: str) -> dict[int, PartitionView]:
        return self.views

    def controller(self) -> int:
        return 1


def scene_of(admin: Admin, roles: FixedRoles) -> Scene:
    scene = Scene(SimpleNamespace(bootstrap_servers="127.0.0.1:1"), "t", random.Random(1))  # type: ignore[arg-type]
    scene.admin, scene.roles = admin, roles
    return scene


def test_creating_a_topic_is_retried_until_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous fault may have cut the brokers from ZooKeeper."""
    monkeypatch.setattr(waiting, "POLL_S", 0)
    admin = Admin(KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS)
    scene_of(admin, FixedRoles(1)).make_topic([[1]], min_insync=1)
    assert admin.asked == 3
    with pytest.raises(KafkaException):
        scene_of(Admin(KafkaError.POLICY_VIOLATION), FixedRoles(1)).make_topic([[1]], min_insync=1)
    monkeypatch.setattr(waiting, "TIMEOUT_S", 0)
    with pytest.raises(TimeoutError, match=r"waited 0 s for: topic t"):
        scene_of(Admin(*[KafkaError.REQUEST_TIMED_OUT] * 9), FixedRoles(1)).make_topic([[1]], min_insync=1)


def test_the_victim_is_a_leader_that_is_not_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TIMEOUT_S", 0)
    assert scene_of(Admin(), FixedRoles(1, None, 2)).leader() == 2
    with pytest.raises(TimeoutError, match="a leader in t beside the controller"):
        scene_of(Admin(), FixedRoles(1, None)).leader()
    with pytest.raises(TimeoutError, match="full ISR of t"):
        scene_of(Admin(), FixedRoles(1, None)).wait_for_full_isr()


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, "it is away")),
        ConnectionLoss("it is away"),
        OSError("it is away"),
    ],
)
def test_an_error_is_one_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(outages, "run", fail)
    result = CliRunner().invoke(main, ["--seed", "1", "--faults", "kill"])
    assert result.exit_code == 1
    assert "SIGKILL of a leader" in result.output
    assert "Error: " in result.output
    assert "it is away" in result.output
