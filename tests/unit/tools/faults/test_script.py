"""Faults that a person writes down, with their times. The words of a fault: test_words.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.faults import script
from tools.faults.record import FaultRecord
from tools.faults.script import Faulted, FaultError, FaultRun, ScriptedFault, check, parse, parse_all
from tools.faults.words import parse_words


@pytest.mark.parametrize(
    ("text", "verb", "role", "at_s"),
    [
        ("kill leader of departures-0 at 20s", "kill", "leader of departures-0", 20),
        ("expire-session coordinator of a group at 1h2m3.5s250ms", "expire-session", "coordinator of a group", 3723.75),
        ("restart it at 35s", "restart", "it", 35),
    ],
)
def test_faults_that_are_read(text: str, verb: str, role: str, at_s: float) -> None:
    assert parse(text) == ScriptedFault(verb, role, at_s)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill leader of t-0", "is not `ACTION ROLE at TIME`"),
        ("drown leader of t-0 at 3s", "the actions are kill, stop, pause"),
        ("heal controller", "it says no time"),
    ],
)
def test_faults_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(FaultError, match=reason.replace("(", r"\(")):
        parse(text)


def test_faults_are_sorted_and_it_needs_one_before() -> None:
    faults = parse_all(["restart it at 5s", "kill controller at 1s"])
    assert [fault.verb for fault in faults] == ["kill", "restart"]
    with pytest.raises(FaultError, match="no fault before it that `it` could mean"):
        parse_all(["restart it at 5s"])


def cluster(**changed: Any) -> Any:
    """Brokers 1 and 2, and a ZooKeeper."""
    zookeeper = SimpleNamespace(broker_id=None)
    fake = {"broker_ids": (1, 2), "impossible": {}, "zookeeper": lambda: zookeeper}
    return SimpleNamespace(broker=lambda number: SimpleNamespace(broker_id=number), **(fake | changed))


@pytest.mark.parametrize(
    ("text", "changed", "reason"),
    [
        ("kill broker 7 at 1s", {}, "'kill broker 7 at 1s': the cluster has no broker 7; its brokers are 1, 2"),
        ("pause zookeeper at 1s", {"zookeeper": lambda: None}, "the cluster has no ZooKeeper of its own"),
        ("expire-session zookeeper at 1s", {}, "ZooKeeper has no session of its own"),
        ("expire-session controller at 1s", {"impossible": {"expire-session": "no way in"}}, "no way in"),
        ("fill-disk zookeeper at 1s", {}, "fill-disk is for brokers"),
        ("cut broker 2 from broker:2 at 1s", {}, "broker 2 has no link to itself"),
        ("cut controller from broker:9 at 1s", {}, "the cluster has no broker 9"),
        ("cut zookeeper from controller at 1s", {}, "ZooKeeper has no link to controller"),
    ],
)
def test_faults_that_a_cluster_cannot_have(text: str, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(FaultError, match=reason):
        check(parse_all(["kill controller at 0s", text]), cluster(**changed))


def test_faults_that_a_cluster_can_have() -> None:
    texts = ["kill zookeeper at 1s", "restart it at 2s", "stop broker 2 at 3s", "expire-session leader of t-0 at 4s"]
    texts += ["cut controller from broker:2 at 5s", "isolate zookeeper at 6s", "heal at 7s"]
    check(parse_all(texts), cluster())


def run_of_faults(monkeypatch: pytest.MonkeyPatch, broker: Callable[[str], int | None], *texts: str) -> list[str]:
    """Carries the faults out on a cluster that only says which broker coordinates a group; returns what was done."""
    monkeypatch.setattr(script, "Roles", lambda _: SimpleNamespace(of=lambda role: broker(role.name)))
    monkeypatch.setattr(script, "act", lambda *_: None)
    monkeypatch.setattr(script, "heal", lambda _: None)
    monkeypatch.setattr(script, "ROLE_TIMEOUT_S", -1)
    said: list[str] = []
    run = FaultRun(cluster(), parse_all(texts), [], lambda fault: said.append(str(fault)))
    run.step(100)
    run.finish()
    return said


def test_it_is_the_victim_of_the_fault_before_and_not_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["kill coordinator of a at 1s", "restart it at 2s", "kill coordinator of b at 3s", "restart it at 4s"]
    assert run_of_faults(monkeypatch, {"a": 2}.get, *texts) == [
        "kill coordinator of a: broker 2",
        "restart it: broker 2",
        "kill coordinator of b: nobody is coordinator of b",
        "restart it: the fault before it hit nobody",
    ]


def test_a_role_that_nobody_can_have_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = SimpleNamespace(of=lambda _: None, partitions=lambda _: {}, why_never=lambda _: "there is no topic t")
    monkeypatch.setattr(script, "Roles", lambda _: roles)
    monkeypatch.setattr(script, "UNKNOWN_TIMEOUT_S", 0)
    monkeypatch.setattr(script, "ROLE_TIMEOUT_S", 3600)
    rows, victims = Faulted(cluster(), ["t"]).carry_out(parse_words("kill leader t-0"))
    assert ([str(row) for row in rows], victims) == (["kill leader of t-0: there is no topic t"], [])


def test_a_bug_in_a_fault_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> int | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_of_faults(monkeypatch, broken, "kill coordinator of a at 1s")


def test_zookeeper_and_a_broker_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["kill zookeeper at 1s", "restart it at 2s", "pause broker 2 at 3s"]
    assert run_of_faults(monkeypatch, {}.get, *texts) == [
        "kill zookeeper: ZooKeeper",
        "restart it: ZooKeeper",
        "pause broker 2: broker 2",
    ]


def test_a_fault_with_an_end_is_undone_then_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each undo names the victim of its fault, whoever has the role by then."""
    leaders = iter([1, 2])
    monkeypatch.setattr(script, "Roles", lambda _: SimpleNamespace(of=lambda role: next(leaders)))
    monkeypatch.setattr(script, "heal", lambda _: None)
    monkeypatch.setattr(script, "act", lambda *_: None)
    undone = script.ACTIONS["kill"]
    monkeypatch.setitem(script.ACTIONS, "kill", replace(undone, undo=lambda *_: None))
    said: list[str] = []
    texts = ["kill controller for 5s at 1s", "kill controller for 1s at 2s"]
    run = FaultRun(cluster(), parse_all(texts), [], lambda fault: said.append(str(fault)))
    for elapsed_s, expected in (
        (2, ["kill controller: broker 1", "kill controller: broker 2"]),
        (3, ["heal controller: broker 2"]),
        (5.9, []),
        (6, ["heal controller: broker 1"]),
    ):
        assert not run.is_over
        said.clear()
        run.step(elapsed_s)
        while not all(done.done() for done in run._under_way):
            time.sleep(0.001)
        assert said == expected
    assert run.is_over
    run.finish()


def test_a_role_that_moved_is_healed_at_the_broker_that_had_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaders = iter([1, 2])
    monkeypatch.setattr(
        script, "Roles", lambda _: SimpleNamespace(of=lambda role: next(leaders), partitions=lambda _: {})
    )
    acted: list[tuple[str, int]] = []
    monkeypatch.setattr(script, "act", lambda verb, node, _: acted.append((verb, node.broker_id)))
    record = FaultRecord(tmp_path / "unhealed.json")
    faulted = Faulted(cluster(), ["t"], record=record)
    for words in ("pause leader t-0", "isolate leader t-0", "resume leader t-0", "heal broker 2", "heal leader t-0"):
        faulted.carry_out(parse_words(words))
    assert acted == [("pause", 1), ("isolate", 2), ("resume", 1), ("resume", 2), ("heal", 2)]
    (row,), _ = faulted.carry_out(parse_words("heal leader t-0"))
    assert row.error.startswith("no fault of leader of t-0 is waiting to be undone")
    assert record.all() == []
