"""Every fault is undone, whatever happens in between, and `heal` finds out what to undo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tools.cluster.local_cluster import ClusterError
from tools.faults import faults, processes
from tools.faults.faults import ACTIONS, healed, inject
from tools.faults.processes import Broker, ProcessCluster


class Recorded:
    """A cluster or a victim; `broken`: the calls that raise."""

    def __init__(self, *broken: tuple[str, int], **attributes: Any) -> None:
        self.calls: list[tuple[str, int]] = []
        self.broken = broken
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        def call(broker: int) -> None:
            self.calls.append((name, broker))
            if (name, broker) in self.broken:
                raise ClusterError(f"{name} of {broker}")

        return call


@pytest.mark.parametrize(
    ("action", "done", "undone"),
    [("kill", "kill", "start_broker"), ("stop", "stop_broker", "start_broker"), ("pause", "pause", "resume")],
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_fault_is_undone(
    action: str, done: str, undone: str, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Recorded()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert cluster.calls == [(done, 1), (done, 2)]
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 5.0))
    victims = [Broker(cluster, 1), Broker(cluster, 2)]
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            inject(action, victims, 3.0)
    else:
        assert inject(action, victims, 3.0) == 5.0
    assert slept == [3.0]
    assert cluster.calls[2:] == [(undone, 1), (undone, 2)]


def test_only_what_was_done_is_undone() -> None:
    cluster = Recorded(("kill", 2))
    with pytest.raises(ClusterError, match="kill of 2"):
        inject("kill", [Broker(cluster, 1), Broker(cluster, 2), Broker(cluster, 3)])
    assert cluster.calls == [("kill", 1), ("kill", 2), ("start_broker", 1)]


def test_an_expired_session_is_not_undone() -> None:
    victim = SimpleNamespace(expire_session=lambda: None)
    inject("expire-session", [victim])  # type: ignore[list-item]
    assert set(ACTIONS) == {"kill", "stop", "pause", "expire-session"}


@pytest.mark.parametrize("broken", [[], [("start_broker", 2)]])
def test_heal_starts_and_resumes_everything(broken: list[tuple[str, int]]) -> None:
    """A broker that does not start does not prevent the others from starting, and is reported."""
    pids = {1: 11, 2: None, 3: 33, 4: None}
    cluster = Recorded(
        *broken, broker_ids=(1, 2, 3, 4), zookeeper=None, pid=pids.get, is_paused=lambda broker: broker == 3
    )
    with pytest.raises(ClusterError if broken else ZeroDivisionError), healed(ProcessCluster(cluster)):
        raise ZeroDivisionError
    assert cluster.calls == [("resume", 3), ("start_broker", 2), ("start_broker", 4)]


@pytest.mark.parametrize(("pid", "calls"), [(None, [("start_zookeeper", 0)]), (7, [("send", 18)])])
def test_zookeeper_is_healed_first(
    pid: int | None, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started if it has ended, and resumed if it is paused."""
    process = SimpleNamespace(
        pid=lambda: pid, is_paused=lambda: pid is not None, send=lambda number: cluster.send(int(number))
    )
    cluster = Recorded(broker_ids=(1,), zookeeper=process, pid=lambda broker: None, is_paused=lambda broker: False)
    zookeeper = SimpleNamespace(
        process=process, start=lambda: cluster.start_zookeeper(0), wait_ready=lambda timeout_s: None
    )
    monkeypatch.setattr(processes, "_zookeeper", lambda cluster: zookeeper)
    faults.heal(ProcessCluster(cluster))
    assert cluster.calls == [*calls, ("start_broker", 1)]
