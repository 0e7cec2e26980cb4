"""Each fault of a local cluster is written to `faults.jsonl`, with its victim, the role that named it and what is cut from whom."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.conversation.rule import FAULT_SOCKET
from tools.cluster.fault_log import FaultLog, named_as
from tools.cluster.links.rules import Rule
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.faults import full_disk, processes
from tools.faults.processes import ProcessCluster
from tools.faults.record import FaultRecord
from tools.faults.words import parse_words

ALL = {"direction": "both", "effects": [], "only_control": False}


class Control:
    """The links' process: it keeps the rules."""

    def __init__(self) -> None:
        self.held: dict[str, Rule] = {}

    def add(self, rules: list[Rule]) -> None:
        self.held |= {rule.id: rule for rule in rules}

    def remove(self, ids: list[str]) -> None:
        for each in ids:
            del self.held[each]

    def rules(self) -> list[Rule]:
        return list(self.held.values())


class Server:
    """A process that does what it is told. `pid` is None when it has ended."""

    def __init__(self) -> None:
        self.is_running = True

    def pid(self) -> int | None:
        return 1 if self.is_running else None

    def is_paused(self) -> bool:
        return False

    def send(self, number: int) -> bool:
        return self.is_running

    def kill(self) -> None:
        self.is_running = False


class Fake:
    """A cluster of three brokers without processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker_ids = (1, 2, 3)
        self.fault_log = FaultLog(directory)
        self.links = Control()
        self.links_process = Server()
        self.zookeeper = Server()
        self.running: dict[int, bool] = dict.fromkeys(self.broker_ids, True)

    def pid(self, broker: int) -> int | None:
        return 1 if self.running[broker] else None

    def is_paused(self, broker: int) -> bool:
        return False

    def stop_broker(self, broker: int) -> None:
        self.running[broker] = False

    def start_broker(self, broker: int) -> None:
        self.running[broker] = True

    def start_links(self) -> None:
        self.links_process.is_running = True

    def log_directories(self, broker: int) -> list[Path]:
        return [self.directory / str(broker)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setattr(
        processes,
        "_zookeeper",
        lambda cluster: SimpleNamespace(
            process=made.zookeeper,
            start=lambda *, partitions: setattr(made.zookeeper, "is_running", True),
            wait_ready=lambda _: None,
            address=("127.0.0.1", 1),
            tls=lambda: None,
        ),
    )
    monkeypatch.setattr(full_disk, "fill", lambda *_: None)
    monkeypatch.setattr(full_disk, "empty", lambda _: True)

    async def session_id(broker: processes.Broker) -> int:
        return 7

    monkeypatch.setattr(processes.Broker, "_session_id", session_id)
    monkeypatch.setattr(processes, "expire_session", lambda *_: None)
    return made


def written(fake: Fake) -> list[dict[str, Any]]:
    """The rows since the last call, without their times."""
    path = fake.fault_log.path
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return [{key: value for key, value in row.items() if key != "time_ms"} for row in rows]


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ("isolate broker 2", [{**ALL, "others": [1, 3, "zookeeper"], "links": "from peers,zookeeper"}]),
        ("isolate broker 2 from peers", [{**ALL, "others": [1, 3], "links": "from peers"}]),
        (
            "cut broker 2 from broker:3 one-way in",
            [{**ALL, "others": [3], "direction": "in", "links": "from broker:3 one-way in"}],
        ),
        (
            "cut broker 2 from controller,zookeeper delay 100ms reset",
            [
                {"others": ["zookeeper"], "only_control": False},
                {"others": [1, 3], "only_control": True, "effects": ["delay 100ms", "reset"]},
            ],
        ),
        (
            "cut broker 2 from peers throttle 3Mbit half",
            [{**ALL, "others": [1, 3], "effects": ["throttle 3000000bit", "half"]}],
        ),
        ("isolate zookeeper", [{**ALL, "broker": None, "others": [1, 2, 3]}]),
    ],
)
def test_broken_links_and_their_heal(fake: Fake, said: str, rows: list[dict[str, Any]]) -> None:
    cluster, words = ProcessCluster(cast(LocalCluster, fake)), parse_words(said)
    assert words.breakage is not None
    victim = cluster.zookeeper() if words.role == "zookeeper" else cluster.broker(2)
    assert victim is not None
    for join in (words.breakage, None):
        victim.sever(words.breakage)
        found = written(fake)
        assert len(found) == len(rows)
        for row, expected in zip(found, rows, strict=True):
            assert row["kind"] == "links_broken"
            assert row | expected == row
            assert row["links"] == str(words.breakage)
        cluster.broker(1).join(None)
        assert written(fake) == [], "no link of broker 1 was broken"
        victim.join(join)
        joined = {"kind": "links_joined", "broker": victim.broker_id, "links": None if join is None else str(join)}
        assert written(fake) == [joined]
        victim.join(join)
        assert written(fake) == [], "there is nothing left to heal"


Act = Callable[[ProcessCluster], None]


def zookeeper(act: str) -> Act:
    return lambda cluster: getattr(cluster.zookeeper(), act)()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("act", "rows"),
    [
        (lambda cluster: cluster.broker(2).expire_session(), [("broker_session_ended", 2)]),
        (lambda cluster: cluster.broker(2).fill_disk(), [("disk_filled", 2)]),
        (lambda cluster: cluster.broker(2).free_disk(), [("disk_emptied", 2)]),
        (zookeeper("kill"), [("zookeeper_killed", None)]),
        (zookeeper("stop"), [("zookeeper_killed", None)]),
        (zookeeper("pause"), [("zookeeper_paused", None)]),
        (zookeeper("resume"), [("zookeeper_resumed", None)]),
        (zookeeper("start"), [("zookeeper_started", None)]),
    ],
)
def test_faults_of_sessions_disks_and_zookeeper(fake: Fake, act: Act, rows: list[tuple[str, int | None]]) -> None:
    with named_as("leader of t-0"):
        act(ProcessCluster(cast(LocalCluster, fake)))
    found = written(fake)
    assert [(row["kind"], row.get("broker")) for row in found] == rows
    assert {row["role"] for row in found} == {"leader of t-0"}
    act(ProcessCluster(cast(LocalCluster, fake)))
    assert not any("role" in row for row in written(fake)), "the role ends with the fault"


def test_links_whose_process_ended_are_started_again(fake: Fake) -> None:
    fake.links_process.is_running = False
    ProcessCluster(cast(LocalCluster, fake)).broker(2).join(None)
    assert written(fake) == [{"kind": "links_started"}]


def test_a_fault_that_is_refused_is_not_written(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise processes.ClusterError("too large")

    monkeypatch.setattr(full_disk, "fill", refuses)
    with pytest.raises(processes.ClusterError):
        ProcessCluster(cast(LocalCluster, fake)).broker(2).fill_disk()
    assert written(fake) == []


def test_a_socket_whose_broker_was_killed_takes_no_rule(fake: Fake) -> None:
    """SIGKILL leaves it behind. A broker without `broker.fault.injection` never removes it."""
    path = fake.directory / "broker-2" / FAULT_SOCKET
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    broker = ProcessCluster(cast(LocalCluster, fake)).broker(2)
    broker.remove_rules(None)
    rule = parse_words("drop fetch").request
    assert rule is not None
    with pytest.raises(ClusterError, match="broker 2 takes no rules about requests: it is not ready yet"):
        broker.add_rule(rule.rule)


@pytest.mark.parametrize(("said", "is_stopped"), [("drop fetch", True), ("kill broker 2", False), (None, True)])
def test_a_heal_starts_no_cluster_that_only_had_faults_in_requests(
    fake: Fake, said: str | None, is_stopped: bool
) -> None:
    stopped = cast(Any, fake)
    stopped.running = dict
    found = ProcessCluster(stopped)
    if said is not None:
        FaultRecord(found.record_file).note(parse_words(said), 2)
    assert found.is_stopped() is is_stopped
