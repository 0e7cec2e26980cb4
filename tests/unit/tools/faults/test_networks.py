"""Containers that are cut off: from their networks, and back with aliases and address; from single peers by iptables inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.cluster.processes import ClusterError
from tools.faults import networks, volume_disk
from tools.faults.containers import ComposeCluster
from tools.faults.words import Breakage, FaultError, parse_words

NETWORKS = {
    "p_default": {"Aliases": ["kafka2", "0123456789ab"], "IPAMConfig": None, "IPAddress": "10.0.0.2"},
    "fixed": {"Aliases": None, "IPAMConfig": {"IPv4Address": "10.1.0.7"}, "IPAddress": "10.1.0.7"},
}


class Docker:
    """Answers `inspect`, and writes down everything else. `fails`: a command whose start has this text, with the complaint."""

    def __init__(self, running: bool = True) -> None:
        self.calls: list[str] = []
        self.connected: dict[str, Any] = dict(NETWORKS)
        self.fails: tuple[str, str] | None = None
        self.answers: dict[str, str] = {}
        self.running = running

    def __call__(self, *arguments: str) -> str:
        if arguments[0] == "inspect":
            return json.dumps([self._inspected(name) for name in arguments[3:]])
        line = " ".join(arguments)
        self.calls.append(line)
        if self.fails is not None and self.fails[0] in line:
            raise ClusterError(self.fails[1])
        if line.startswith("network disconnect"):
            del self.connected[arguments[2]]
        return next((answer for start, answer in self.answers.items() if start in line), "")

    def _inspected(self, name: str) -> dict[str, Any]:
        number = name.removeprefix("p-kafka").removesuffix("-1")
        address = {"p_default": {"IPAddress": f"10.0.0.{number}" if number.isdigit() else "10.0.0.9"}}
        return {
            "Name": f"/{name}",
            "Id": "0123456789abcdef",
            "Image": "sha256:abc",
            "State": {"Running": self.running, "Paused": False, "Pid": 77},
            "Config": {"Env": environment(number), "Labels": {"com.docker.compose.service": name}},
            "HostConfig": {"PortBindings": {"9092/tcp": [{"HostIp": "127.0.0.1", "HostPort": f"1909{number}"}]}},
            "NetworkSettings": {"Networks": self.connected if number == "2" else address},
        }


def environment(number: str) -> list[str]:
    if not number.isdigit():
        return []
    listeners = f"INTERNAL://0.0.0.0:19091,HOST://0.0.0.0:9092,CONTROLLER://0.0.0.0:1809{number}"
    names = {"KAFKA_BROKER_ID": number, "KAFKA_LISTENERS": listeners, "KAFKA_CONTROL_PLANE_LISTENER_NAME": "CONTROLLER"}
    return [f"{key}={value}" for key, value in (names | {"KAFKA_ZOOKEEPER_CONNECT": "zookeeper:2181"}).items()]


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    fake = Docker()
    for module in ("networks", "containers", "volume_disk", "docker_command"):
        monkeypatch.setattr(f"tools.faults.{module}.docker", fake)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return fake


def cluster(docker: Docker) -> ComposeCluster:
    names = ("p-kafka1-1", "p-kafka2-1", "p-kafka3-1", "zookeeper")
    return ComposeCluster("p", json.loads(docker("inspect", "--type", "container", *names)))


def breakage(words: str) -> Breakage:
    found = parse_words(f"cut broker 2 {words}").breakage
    assert found is not None
    return found


@pytest.mark.usefixtures("inside")
def test_out_of_all_networks_and_back(docker: Docker, tmp_path: Path) -> None:
    """FLT-34. Another process brings it back: what it needs is in a file."""
    cluster(docker).broker(2).sever(Breakage())
    assert docker.calls == ["network disconnect p_default p-kafka2-1", "network disconnect fixed p-kafka2-1"]
    cluster(docker).broker(2).sever(Breakage())
    assert len(docker.calls) == 2, "it is out already, and what was written down is kept"
    docker.calls.clear()
    docker.fails = (
        "--ip 10.0.0.2",
        "docker network: user specified IP address is supported only with a configured subnet",
    )
    cluster(docker).broker(2).join(None)
    assert [call for call in docker.calls if call.startswith("network connect")] == [
        "network connect --alias kafka2 --ip 10.0.0.2 p_default p-kafka2-1",
        "network connect --alias kafka2 p_default p-kafka2-1",
        "network connect --ip 10.1.0.7 fixed p-kafka2-1",
    ]
    assert not list((tmp_path / "state").rglob("*.json"))
    docker.calls.clear()
    cluster(docker).broker(2).join(Breakage())
    assert docker.calls == []


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The commands of iptables, as root, inside a container that has no chain of ours yet."""
    calls: list[str] = []

    def run(command: list[str], name: str, not_found: str) -> str:
        assert command[:6] == ["nsenter", "--target", "77", "--net", "iptables", "-w"]
        calls.append(" ".join(command[6:]))
        made = [call for call in calls if call.startswith("-N")]
        if command[6] == "-n" and f"-N {command[-1]}" not in made:
            raise ClusterError("iptables: No chain/target/match by that name.")
        return ""

    monkeypatch.setattr(networks, "run", run)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/sbin/{name}")

    def changes() -> list[str]:
        found = [call for call in calls if not call.startswith("-n")]
        calls.clear()
        return found

    return changes


def test_single_links_are_rules_inside(docker: Docker, inside: Callable[[], list[str]]) -> None:
    broker = cluster(docker).broker(2)
    broker.sever(breakage("from broker:1 one-way in"))
    assert inside() == [
        "-N ottla-fault-in",
        "-I INPUT -j ottla-fault-in",
        "-N ottla-fault-out",
        "-I OUTPUT -j ottla-fault-out",
        "-A ottla-fault-in -s 10.0.0.1 -j DROP",
    ]
    broker.sever(breakage("from controller one-way out"))
    assert "-A ottla-fault-out -d 10.0.0.3 -p tcp --dport 18093 -j DROP" in inside()
    broker.join(breakage("from broker:1 one-way in"))
    assert inside() == ["-D ottla-fault-in -s 10.0.0.1 -j DROP"]


def test_what_cannot_be_cut_here(
    docker: Docker, inside: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster(docker).broker(2)
    with pytest.raises(FaultError, match="delay, throttle and half need"):
        broker.sever(breakage("from peers delay 1s"))
    assert inside() == []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="only root can cut single links of a container"):
        broker.sever(breakage("from peers"))
    broker.join(None)


def test_without_iptables_there_is_no_rule_to_remove(
    docker: Docker, inside: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    cluster(docker).broker(2).join(None)
    assert inside() == []


def test_a_small_volume_is_filled_and_emptied(docker: Docker) -> None:
    docker.answers = {"df --block-size=1": "1B-blocks\n268435456\n"}
    cluster(docker).broker(2).fill_disk()
    assert docker.calls[-1] == "exec p-kafka2-1 sh -c cat /dev/zero > /var/lib/ottla/data/ottla-fault-ballast || true"
    docker.calls.clear()
    docker.running = False
    cluster(docker).broker(2).free_disk()
    assert docker.calls == [
        "run --rm --network none --volumes-from p-kafka2-1 --entrypoint rm sha256:abc -f /var/lib/ottla/data/ottla-fault-ballast",
        "start p-kafka2-1",
    ]
    docker.calls.clear()
    cluster(docker).broker(2).free_disk()
    assert docker.calls == [], "there is nothing to undo any more"


def test_a_large_volume_is_not_filled(docker: Docker, tmp_path: Path) -> None:
    docker.answers = {"df --block-size=1": "1B-blocks\n268435456000\n"}
    with pytest.raises(ClusterError, match=r"is on one of 250.0 GiB; docs/FAULTS.md"):
        volume_disk.fill("p-kafka2-1", tmp_path / "saved")
    assert len(docker.calls) == 1
