"""The demo's fault: when it strikes, whom, and what it notes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from tools.replay.leader_kill import LeaderKill
from tools.replay.plan import OutputDirectory


class KilledBrokers:
    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def kill(self, broker_id: int) -> None:
        self.done.append(("kill", broker_id))

    def start_broker(self, broker_id: int) -> None:
        self.done.append(("start", broker_id))


def test_kills_the_leader_in_the_middle_and_brings_it_back(tmp_path: Path) -> None:
    cluster, said, output = KilledBrokers(), list[str](), OutputDirectory(tmp_path)
    kill = LeaderKill(cluster, lambda: {0: 1, 1: 2, 2: 3, 3: 2}, 3, 100.0, output, said.append)
    for elapsed, done in (
        (0.0, []),
        (44.9, []),
        (45.0, [("kill", 2)]),
        (60.0, [("kill", 2)]),
        (70.0, [("kill", 2), ("start", 2)]),
        (99.0, [("kill", 2), ("start", 2)]),
    ):
        kill.step(elapsed)
        assert cluster.done == done
    faults = output.read_faults()
    assert [(fault.kind, fault.broker, fault.partitions) for fault in faults] == [
        ("kill", 2, [1, 3]),
        ("return", 2, []),
    ]
    assert faults == kill.faults
    assert faults[0].at <= faults[1].at
    assert said == ["SIGKILL to broker 2, the leader of partitions 1, 3", "broker 2 restarts"]


def test_waits_until_the_leader_is_known(tmp_path: Path) -> None:
    cluster = KilledBrokers()
    answers: list[Mapping[int, int] | None] = [None, {0: -1}, {0: 1}]

    def leaders() -> Mapping[int, int]:
        answer = answers.pop(0)
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return answer

    kill = LeaderKill(cluster, leaders, 0, 10.0, OutputDirectory(tmp_path), lambda _: None)
    kill.step(5.0)
    kill.step(5.1)
    assert cluster.done == []
    kill.step(5.2)
    assert cluster.done == [("kill", 1)]


def test_says_what_else_the_killed_broker_was(tmp_path: Path) -> None:
    said = list[str]()
    kill = LeaderKill(KilledBrokers(), lambda: {0: 7}, 0, 10.0, OutputDirectory(tmp_path), said.append, "; {}!".format)
    kill.step(5.0)
    assert said == ["SIGKILL to broker 7, the leader of partitions 0; 7!"]
