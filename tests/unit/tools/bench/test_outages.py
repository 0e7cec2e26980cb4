"""The outage table: its words, its figures, and what it refuses."""

from __future__ import annotations

import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from protocol.zk.session import ConnectionLoss
from tools.bench import outage_faults, outages
from tools.bench.outage_faults import FAULTS, Scene
from tools.bench.outages import Row, main, table
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


def test_the_table_has_ours_beside_the_goal_and_kafka() -> None:
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
    """Each request for a topic ends in the next of `errors`, then well."""

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

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={})})


def scene_of(admin: Admin) -> Scene:
    scene = Scene(SimpleNamespace(bootstrap_servers="127.0.0.1:1"), "t", random.Random(1))  # type: ignore[arg-type]
    scene.admin = admin
    return scene


def test_a_topic_is_asked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers may just have lost ZooKeeper, by the fault before."""
    monkeypatch.setattr(outage_faults, "POLL_S", 0)
    admin = Admin(KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.TOPIC_ALREADY_EXISTS)
    scene_of(admin).make_topic([[1]], min_insync=1)
    assert admin.asked == 3
    with pytest.raises(KafkaException):
        scene_of(Admin(KafkaError.POLICY_VIOLATION)).make_topic([[1]], min_insync=1)
    monkeypatch.setattr(outage_faults, "TIMEOUT_S", 0)
    with pytest.raises(TimeoutError, match=r"topic t was not created within .*said so"):
        scene_of(Admin(*[KafkaError.REQUEST_TIMED_OUT] * 9)).make_topic([[1]], min_insync=1)


def test_a_partition_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_faults, "TIMEOUT_S", 0)
    scene = scene_of(Admin())
    scene.cluster = SimpleNamespace(controller_id=lambda: 1)  # type: ignore[assignment]
    with pytest.raises(TimeoutError):
        scene.leader()


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, "it is away")),
        ConnectionLoss("it is away"),
        OSError("it is away"),
    ],
)
def test_what_goes_wrong_is_a_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(outages, "run", fail)
    result = CliRunner().invoke(main, ["--seed", "1", "--faults", "kill"])
    assert result.exit_code == 1
    assert "SIGKILL of a leader" in result.output
    assert "Error: " in result.output
    assert "it is away" in result.output
