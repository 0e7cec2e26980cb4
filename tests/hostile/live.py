"""Attacks on a running cluster that carries canary traffic, and a report of each.

    python -m tests.hostile.live --minutes 60 --seed 1                   attacks in a random order
    python -m tests.hostile.live --attack bombs --attack comes_and_goes

A run fails, with its seed, when the canary waited longer than --wait-s, a process died, memory did not come back, the
canary's records are not all there in order, or an attack complains.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import NewTopic

from tests.conftest import running_clusters
from tests.hostile.attacks import ATTACKS, Attack, LoginListener, Target
from tests.hostile.attacks_on_logins import LISTENER, MECHANISMS, PASSWORD, USER
from tests.hostile.beside import SAMPLE_S, BrokerMemory, CanaryProcess
from tests.support.certificates import Certificates
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.secured import login_listener, more_listeners
from tests.support.topics import create_topics, fill
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import LogReader
from tools.cluster.ports import free_ports

BROKERS = 3

RECORD_BYTES = 100_000
RECORDS_OF_A_PARTITION = 150
CALM_S = 0.3
CALM_WITHIN_S = 60.0
MEMORY_BACK_WITHIN_S = 10.0
MEMORY_MORE_MIB = 64.0
"""What a broker may hold more after an attack than before it: caches and the allocator's rest."""
LOG_LINES_OF_A_HARM = 20
"""The last lines of each broker's log that a report with harm shows."""


@dataclass
class AttackReport:
    """What one attack did. Seconds, MiB."""

    attack: str
    wait_s: float = 0.0
    waited_for: str = ""
    memory_before: float = 0.0
    memory_peak: float = 0.0
    memory_after: float = 0.0
    seconds: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    harm: list[str] = field(default_factory=list)
    log_lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        memory = f"{self.memory_before:.0f} -> {self.memory_peak:.0f} -> {self.memory_after:.0f} MiB"
        said = f"{self.attack:20} {self.seconds:6.1f} s  wait {self.wait_s:6.2f} s ({self.waited_for}), {memory}"
        errors = f"; canary's errors {self.errors}" if self.errors else ""
        harm = f"; HARM: {'; '.join(self.harm)}" if self.harm else ""
        harm = "\n    ".join([harm, *self.log_lines])
        return f"{said}{errors}{harm}"


class LiveRun:
    """A cluster with its canary; `play` runs one attack."""

    def __init__(self, cluster: LocalCluster, login: LoginListener, seed: int, wait_max_s: float) -> None:
        self.cluster = cluster
        self.wait_max_s = wait_max_s
        self.zk = ZooKeeperView(cluster.zookeeper_connect)
        self.rng = random.Random(seed)
        self.target = Target(cluster, self.zk, login, "wide", "full", self.rng)
        _make_topics(cluster)
        self.canary = CanaryProcess(cluster, "canary")
        self.memory = BrokerMemory(cluster)
        self.pids = {broker: cluster.pid(broker) for broker in cluster.broker_ids}
        self._logs = {broker: LogReader(cluster.broker_directory(broker) / "server.log") for broker in self.pids}
        time.sleep(CALM_S)
        self.canary.mark()

    def close(self) -> None:
        self.canary.close()
        self.memory.close()
        self.zk.close()

    def play(self, attack: Attack) -> AttackReport:
        """Runs the attack and waits until the cluster is calm again."""
        report = AttackReport(attack.__name__, memory_before=self.memory.now())
        self.memory.peak = 0.0
        for log in self._logs.values():
            log.skip()
        begun = time.monotonic()
        try:
            complaint = attack(self.target)
        except Exception as error:  # what an attack cannot do is said with the rest
            logging.exception("attack %s", report.attack)
            complaint = f"the attack broke off: {type(error).__name__}: {error}"
        if complaint:
            report.harm.append(complaint)
        report.seconds = time.monotonic() - begun
        self._until_calm(report)
        self._until_memory_is_back(report)
        for broker, pid in self.pids.items():
            if self.cluster.pid(broker) != pid:
                report.harm.append(f"broker {broker} died")
        if report.harm:
            report.log_lines = self._new_log_lines()
        return report

    def _new_log_lines(self) -> list[str]:
        found = []
        for broker, log in self._logs.items():
            lines = [line.decode(errors="replace").rstrip() for line in log.new_lines()]
            found += [f"broker {broker}: {line}" for line in lines[-LOG_LINES_OF_A_HARM:]]
        return found

    def _until_calm(self, report: AttackReport) -> None:
        deadline = time.monotonic() + CALM_WITHIN_S
        while True:
            row = self.canary.mark()
            what, longest = max(row["longest_s"].items(), key=lambda item: item[1], default=("", 0.0))
            if longest > report.wait_s:
                report.wait_s, report.waited_for = longest, what
            for error, count in row["errors"].items():
                report.errors[error] = report.errors.get(error, 0) + count
            report.harm += row["faults"]
            if longest < CALM_S and row["answers"] > 20:
                break
            if time.monotonic() > deadline:
                report.harm.append(f"the canary is not served again after {CALM_WITHIN_S:g} s")
                break
            time.sleep(CALM_S)
        if report.wait_s > self.wait_max_s:
            report.harm.append(f"the canary waited {report.wait_s:.2f} s for {report.waited_for}")

    def _until_memory_is_back(self, report: AttackReport) -> None:
        deadline = time.monotonic() + MEMORY_BACK_WITHIN_S
        while (now := self.memory.now()) > report.memory_before + MEMORY_MORE_MIB and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
        report.memory_after, report.memory_peak = now, self.memory.peak
        if now > report.memory_before + MEMORY_MORE_MIB:
            report.harm.append(f"memory went from {report.memory_before:.0f} to {now:.0f} MiB and stays")


def _make_topics(cluster: LocalCluster) -> None:
    """`canary`: a partition led by each broker; `wide`: 50 partitions; `full`: 3 with 15 MB each."""
    ids = list(cluster.broker_ids)
    assignment = [[ids[(at + step) % len(ids)] for step in range(3)] for at in range(3)]
    settings = {"min.insync.replicas": "2"}
    topics = [NewTopic(name, 3, replica_assignment=assignment, config=settings) for name in ("canary", "full")]
    topics.append(NewTopic("wide", 50, 3))
    create_topics(cluster.bootstrap_servers, *topics)
    value = random.Random(0).randbytes(RECORD_BYTES)
    fill(cluster.bootstrap_servers, "full", [value] * 3 * RECORDS_OF_A_PARTITION, 3)
    fill(cluster.bootstrap_servers, "wide", [b"one"])


@contextlib.contextmanager
def live_run(
    directory: Path,
    *,
    seed: int = 0,
    wait_max_s: float = 0.5,
    overrides: Mapping[str, str] | None = None,
) -> Iterator[LiveRun]:
    """A new cluster of three brokers, which is destroyed at the end. Beside the listener in the clear, they have one of SASL_SSL."""
    (certificates := directory / "certificates").mkdir(parents=True)
    made = Certificates(certificates)
    login = LoginListener(dict(enumerate(free_ports(BROKERS), 1)), made.authority)
    settings = {**login_listener(LISTENER, made, MECHANISMS, {USER: PASSWORD}), **(overrides or {})}
    with running_clusters(directory) as start:
        cluster = start(overrides=settings, own_properties=more_listeners({LISTENER: login.ports}))
        with closing(LiveRun(cluster, login, seed, wait_max_s)) as run:
            eventually(lambda: run.canary.mark()["acknowledged"] > 20, "the canary is served")
            yield run


def _order(names: Sequence[str], seed: int, until: float | None) -> Iterator[str]:
    """All of them, shuffled; again and again until `until`, if that is given."""
    rng = random.Random(seed)
    while True:
        for name in rng.sample(list(names), len(names)):
            if until is not None and time.monotonic() > until:
                return
            yield name
        if until is None:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long; default: each attack once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only these")
    parser.add_argument("--fresh", action="store_true", help="a new cluster for each attack")
    parser.add_argument("--wait-s", type=float, default=0.5, help="longest wait of the canary (default: 0.5)")
    options = parser.parse_args()
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    print(f"seed {options.seed}", flush=True)
    names = _order(options.attack or sorted(ATTACKS), options.seed, until)
    clusters = ([name] for name in names) if options.fresh else [names]
    played = harmed = 0
    for some in clusters:
        for report in _play(some, options):
            played += 1
            harmed += bool(report.harm)
            print(report, flush=True)
    print(f"{played} attacks, {harmed} with harm")
    return 1 if harmed else 0


def _play(names: Iterable[str], options: argparse.Namespace) -> Iterator[AttackReport]:
    """On one cluster, until a process of it died."""
    with (
        tempfile.TemporaryDirectory(prefix="ottla-hostile-") as directory,
        live_run(Path(directory) / "cluster", seed=options.seed, wait_max_s=options.wait_s) as run,
    ):
        for name in names:
            report = run.play(ATTACKS[name])
            yield report
            if any("died" in harm for harm in report.harm):
                return
        row = run.canary.mark()
        print(f"the canary: {row['acknowledged']} acknowledged, {row['read']} read", flush=True)


if __name__ == "__main__":
    sys.exit(main())
