"""A program of the user carries faults out: it is called with action, id, host and port, and its complaint is passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.processes import ClusterError
from tools.faults.cluster import State
from tools.faults.commanded import CommandedCluster
from tools.faults.faults import heal
from tools.faults.words import parse_words

ADDRESSES = {2: ("kafka2", 9092), 1: ("kafka1", 9093)}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Writes down how it was called, and refuses to stop."""
    file = tmp_path / "harm it"
    file.write_text(f'#!/bin/sh\n[ $1 = stop ] && {{ echo not now >&2; exit 3; }}\necho "$@" >> "{tmp_path}/calls"\n')
    file.chmod(0o700)
    return file


def test_the_program_gets_the_action_and_the_broker(program: Path, tmp_path: Path) -> None:
    cluster = CommandedCluster(f"'{program}' --quietly", ADDRESSES)
    assert (cluster.broker_ids, cluster.bootstrap_servers) == ((1, 2), "kafka1:9093,kafka2:9092")
    program.write_text(program.read_text().replace("$1", "$2"))
    cluster.broker(2).kill()
    cluster.broker(1).pause()
    assert (cluster.broker(2).state(), cluster.broker(1).state()) == (State.ENDED, State.PAUSED)
    heal(cluster)
    assert {cluster.broker(broker).state() for broker in (1, 2)} == {State.RUNNING}
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--quietly kill 2 kafka2 9092",
        "--quietly pause 1 kafka1 9093",
        "--quietly resume 1 kafka1 9093",
        "--quietly start 2 kafka2 9092",
    ]


def test_a_complaint_is_passed_on_and_the_state_stays(program: Path) -> None:
    broker = CommandedCluster(f"'{program}'", ADDRESSES).broker(1)
    with pytest.raises(ClusterError, match="stop 1 kafka1 9093 ended with exit code 3: not now"):
        broker.stop()
    assert broker.state() is State.RUNNING


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param("", "--fault-command is empty", id="empty"),
        pytest.param("harm 'it", "No closing quotation", id="an open quotation"),
    ],
)
def test_what_is_no_command_is_refused(command: str, reason: str) -> None:
    with pytest.raises(ClusterError, match=reason):
        CommandedCluster(command, ADDRESSES)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="No such file or directory"):
        CommandedCluster(str(tmp_path / "none"), ADDRESSES).broker(1).kill()


def test_links_and_disks_are_the_programs_and_are_remembered(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process heals: it knows the addresses of brokers that are not in Metadata any more."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = parse_words("cut broker 1 from peers,broker:2 one-way in").breakage
    cluster = CommandedCluster(f"'{program}'", ADDRESSES, "kafka1:9093")
    assert words is not None
    cluster.broker(1).sever(words)
    cluster.broker(1).fill_disk()
    cluster.broker(2).kill()
    later = CommandedCluster(f"'{program}'", {1: ADDRESSES[1]}, "kafka1:9093")
    assert later.broker_ids == (1, 2)
    heal(later)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "cut 1 kafka1 9093 from peers,broker:2 one-way in",
        "fill-disk 1 kafka1 9093",
        "kill 2 kafka2 9092",
        "heal 1 kafka1 9093",
        "start 2 kafka2 9092",
    ]
    assert CommandedCluster(f"'{program}'", {1: ADDRESSES[1]}, "kafka1:9093").broker_ids == (1,)
    assert CommandedCluster(f"'{program}'", {1: ADDRESSES[1]}, "another:9093").record_file != later.record_file
