"""A Kafka behind `ottla links`: without `--fault-command` only its requests can be broken, with it everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster.processes import ClusterError
from tools.faults.cluster import State
from tools.faults.faults import heal
from tools.faults.proxied import ProxiedCluster
from tools.faults.script import why_impossible
from tools.faults.words import parse_words
from tools.links.links_directory import Known, LinksDirectory


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of links before two brokers, whose process has ended since."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    LinksDirectory(tmp_path).write(Known("127.0.0.1:19092", {1: ("kafka1", 9092), 2: ("kafka2", 9092)}))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "alone", "with_program"),
    [
        ("lose the answer to produce once", None, None),
        ("kill leader of t-0", "--fault-command beside --links carries out such faults", None),
        ("cut broker 1 from peers", "--fault-command beside --links carries out such faults", None),
        ("kill broker 3", "--fault-command beside --links carries out such faults", "the cluster has no broker 3"),
        (
            "expire-session broker 1",
            "links reach requests, and no processes",
            "--fault-command cannot expire a session",
        ),
    ],
)
def test_what_is_possible(links: Path, line: str, alone: str | None, with_program: str | None) -> None:
    for program, expected in ((None, alone), ("harm", with_program)):
        reason = why_impossible(parse_words(line), ProxiedCluster(links, program))
        assert (reason is None) == (expected is None)
        assert (expected or "") in (reason or "")


def test_a_program_harms_the_brokers_at_their_own_addresses(links: Path, tmp_path: Path) -> None:
    program = tmp_path / "harm"
    program.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n')
    program.chmod(0o700)
    ProxiedCluster(links, str(program)).broker(2).kill()
    later = ProxiedCluster(links, str(program))
    assert [later.broker(broker).state() for broker in later.broker_ids] == [State.RUNNING, State.ENDED]
    later.broker(1).fill_disk()
    heal(later)
    calls = ["kill 2 kafka2 9092", "fill-disk 1 kafka1 9092", "heal 1 kafka1 9092", "start 2 kafka2 9092"]
    assert (tmp_path / "calls").read_text().splitlines() == calls
    with pytest.raises(ClusterError, match="links reach requests, and no processes"):
        ProxiedCluster(links).broker(1).pause()
