"""Every fault is undone, whatever happens in between, and `heal` finds out what to undo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import injected
from tests.support.injected import healed, inject
from tools.cluster.local_cluster import ClusterError
from tools.faults.cluster import State
from tools.faults.faults import ACTIONS, heal
from tools.faults.words import Breakage


class Node:
    """A victim that writes down what is done to it; `broken`: the calls that raise."""

    def __init__(self, broker_id: int | None, calls: list[str], *broken: str, state: State = State.RUNNING) -> None:
        self.broker_id = broker_id
        self.now = state
        self.filled = False
        self._calls = calls
        self._broken = broken

    def state(self) -> State:
        return self.now

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> None:
            self._calls.append(" ".join([name, str(self.broker_id or "zookeeper"), *map(str, arguments)]))
            self.now = AFTERWARDS.get(name, self.now)
            if name in self._broken:
                raise ClusterError(f"{name} of {self.broker_id}")

        return call


AFTERWARDS = {
    "kill": State.ENDED,
    "stop": State.ENDED,
    "pause": State.PAUSED,
    "start": State.RUNNING,
    "resume": State.RUNNING,
}


@pytest.mark.parametrize(
    ("action", "done", "undone"),
    [
        ("kill", ["kill"], ["start"]),
        ("stop", ["stop"], ["start"]),
        ("pause", ["pause"], ["resume"]),
        ("bounce", ["kill", "start"], []),
        ("restart", ["stop", "start"], []),
        ("resume", ["resume"], []),
        ("isolate", ["sever {links}"], ["join {links}"]),
        ("cut", ["sever {links}"], ["join {links}"]),
        ("expire-session", ["expire_session"], []),
        ("fill-disk", ["fill_disk"], ["free_disk"]),
        ("heal", ["join None", "remove_rules None", "free_disk"], []),
    ],
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_fault_is_undone(
    action: str, done: list[str], undone: list[str], interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    links = Breakage(("peers",), "in")

    def expected(of: list[str], *brokers: int) -> list[str]:
        words = [text.format(links=links).partition(" ") for text in of]
        return [" ".join(filter(None, (verb, str(broker), rest))) for broker in brokers for verb, _, rest in words]

    def sleep(seconds: float) -> None:
        assert seconds == 3.0
        assert calls == expected(done, 1, 2)
        calls.clear()
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(injected, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 5.0))
    victims: list[Any] = [Node(1, calls), Node(2, calls)]
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            inject(action, victims, 3.0, links)
    else:
        assert inject(action, victims, 3.0, links) == 5.0
    assert calls == expected(undone, 1, 2)


def test_every_action_has_a_row() -> None:
    (table,) = [mark for mark in test_a_fault_is_undone.pytestmark if "undone" in mark.args[0]]
    assert [row[0] for row in table.args[1]] == list(ACTIONS)


def test_what_was_not_done_is_not_undone() -> None:
    calls: list[str] = []
    victims: list[Any] = [Node(1, calls), Node(2, calls, "pause"), Node(3, calls)]
    with pytest.raises(ClusterError, match="pause of 2"):
        inject("pause", victims)
    assert calls == ["pause 1", "pause 2", "resume 1", "resume 2"], "2 may be paused half-way"


def test_what_ended_is_only_started_by_a_restart() -> None:
    """So `restart it` works after a kill, after a pause, and on what runs."""
    calls: list[str] = []
    inject("restart", [Node(1, calls, state=State.ENDED)])  # type: ignore[list-item]
    assert calls == ["start 1"]


def cluster(calls: list[str], *broken: tuple[str, int], zookeeper: State = State.RUNNING) -> Any:
    states = {1: State.RUNNING, 2: State.ENDED, 3: State.PAUSED, 4: State.ENDED}
    nodes = {
        number: Node(number, calls, *(name for name, at in broken if at == number), state=state)
        for number, state in states.items()
    }
    keeper = Node(None, calls, state=zookeeper)
    return SimpleNamespace(
        broker_ids=tuple(nodes), broker=nodes.__getitem__, zookeeper=lambda: keeper, drop_claims=lambda: None
    )


@pytest.mark.parametrize("broken", [[], [("start", 2)], [("join", 3)]])
def test_heal_undoes_everything(broken: list[tuple[str, int]]) -> None:
    """What cannot be healed does not keep the others from being healed, and is reported."""
    calls: list[str] = []
    with pytest.raises(ClusterError if broken else ZeroDivisionError), healed(cluster(calls, *broken)):
        raise ZeroDivisionError
    everybody = ("zookeeper", 1, 2, 3, 4)
    joined, freed = [f"join {node} None" for node in everybody], [f"free_disk {node}" for node in everybody]
    unruled = [f"remove_rules {node} None" for node in everybody]
    assert calls == [*joined, "resume 3", *unruled, *freed, "start 2", "start 4"]


@pytest.mark.parametrize(("state", "first"), [(State.ENDED, "start zookeeper"), (State.PAUSED, "resume zookeeper")])
def test_zookeeper_is_healed_first(state: State, first: str) -> None:
    calls: list[str] = []
    heal(cluster(calls, zookeeper=state))
    assert calls.index(first) < calls.index("start 2")
