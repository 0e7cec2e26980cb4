"""One run: the program and ottla's own load run, faults happen, everything is healed and stopped, and then judged."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ottla.records import IdOf, id_finder
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.guard import ClusterGuard
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers
from tools.cluster.processes import ClusterError
from tools.cluster.zookeeper import ZooKeeperError
from tools.failures import AdminError
from tools.faults.cluster import Cluster, State
from tools.faults.clusters import who_does_not_serve
from tools.faults.processes import ProcessCluster
from tools.faults.request_words import is_request_fault
from tools.faults.script import DoneFault, FaultRun, ScriptedFault
from tools.group_protocols import CLASSIC
from tools.interrupts import Interrupted, ignore_from_now, interruption_was_handled
from tools.judge.logs import Place
from tools.judge.ownership import UNOWNED_S
from tools.judge.reports import ACKED, COMMITTED, CONSUMED, Report
from tools.judge.verdict import HEAL, Client, Fault, Verdict, conclude
from tools.owned_directories import owned_directory
from tools.verify import own_load
from tools.verify.program import Program, Reports
from tools.verify.reading import read_back, read_ends
from tools.wire.security import PLAINTEXT, Security

SOURCE_ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STEP_S = 0.05
LOAD_PARTITIONS = 6
LOAD_START_TIMEOUT_S = 60.0
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
FIRST_REPORT_TIMEOUT_S = 20.0
"""If the program has reported nothing until then, the times of the run and of the faults count from then."""
HEAL_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 20.0
"""How long a program may take until it is served again, after the cluster is healed."""
PROGRAM, LOAD = "your program", "ottla's load"
CLUSTER_PREFIX, REPORTS_PREFIX = "ottla-verify-cluster-", "ottla-verify-reports-"
"""Of temporary directories. The next run removes those of a run that was killed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is to do. `faults`: in the order of their times, in seconds since the first report of the program."""

    command: Sequence[str]
    seconds: float
    faults: Sequence[ScriptedFault]
    id_of: IdOf
    grace_s: float
    has_load: bool
    client_settings: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's, such as `security.protocol`; also for the load."""
    security: Security = PLAINTEXT
    """The same for connections without librdkafka."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the program gets besides the addresses."""
    topics: Sequence[str] = ()
    """Of which the faults note the leaders, besides those that are reported."""
    allowed: Collection[str] = ()
    forbidden: Collection[str] = ()
    unowned_s: float = UNOWNED_S
    """How long a partition may have no owner in a group."""
    group_protocol: str = CLASSIC
    """Kafka's `group.protocol` of the load's group."""
    first_report_s: float = FIRST_REPORT_TIMEOUT_S


def own_cluster(
    brokers: int, overrides: Mapping[str, str], *, links: bool, secure: bool, started: ExitStack
) -> ProcessCluster:
    """A cluster of this run's own, in a temporary directory; closing `started` removes it. `links`: its links can be cut. `secure`: it
    has TLS, users and ACLs.

    Raises ClusterError.
    """
    own_servers()
    directory = owned_directory(CLUSTER_PREFIX, started)
    cluster = LocalCluster(directory)
    guard = ClusterGuard(directory)
    started.callback(guard.stop)
    started.callback(cluster.destroy)
    cluster.create(brokers=brokers, overrides=overrides, links=links, secure=secure)
    cluster.start(START_TIMEOUT_S)
    cluster.wait_ready(START_TIMEOUT_S)
    return ProcessCluster(cluster)


def verify(
    asked: Asked,
    bootstrap_servers: str,
    cluster: Cluster | None,
    say: Callable[[str], None],
    passes: Callable[[bytes], None],
) -> Verdict:
    """`cluster`: what the faults hit. `say` gets lines about the progress, `passes` the program's own lines.

    Raises AdminError or ClusterError if the program or the load cannot be started, KafkaException if nothing can be read back.
    """
    with ExitStack() as started:
        try:
            return Run(asked, bootstrap_servers, cluster, say, passes, started).verdict()
        finally:
            ignore_from_now()


class Run:
    """One run. What it starts is ended when `started` closes, whatever happens."""

    def __init__(
        self,
        asked: Asked,
        bootstrap_servers: str,
        cluster: Cluster | None,
        say: Callable[[str], None],
        passes: Callable[[bytes], None],
        started: ExitStack,
    ) -> None:
        self._asked = asked
        self._bootstrap_servers = bootstrap_servers
        self._cluster = cluster
        self._say = say
        self._passes = passes
        self._started = started
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._began = time.monotonic()
        """When the program made its first report, or started if it makes none."""
        self._incomplete: list[str] = []
        self._notes: list[str] = []
        self._topics: list[str] = list(asked.topics)
        """Of which the faults note the leaders."""
        self._settings = {**asked.client_settings, "bootstrap.servers": bootstrap_servers}
        self._ends: dict[Place, int] = {}
        """Of the partitions before the run."""
        self._program: Program | None = None
        self._looked_at = 0
        self._healed: list[Fault] = []
        self._finished: list[FaultRun] = []
        self._keeps_topic = False
        self._is_interrupted = False
        self._files = owned_directory(REPORTS_PREFIX, started)

    def verdict(self) -> Verdict:
        self._ends = read_ends(self._settings)
        own = self._start_load() if self._asked.has_load else None
        self._began = time.monotonic()
        faults: FaultRun | None = None
        try:
            if self._asked.command:
                # In a thread: an interrupt does not come between the start of the process and the note that it runs.
                with ThreadPoolExecutor(1) as worker:
                    worker.submit(self._start_program).result()
                self._say(f"Started: {shlex.join(self._asked.command)}")
            faults = self._fault_run()
            if self._program is not None:
                self._wait_for_a_report(self._program)
            self._wait(self._program, own, faults)
        except Interrupted as interrupt:
            interruption_was_handled()
            self._is_interrupted = True
            self._say(f"{interrupt}: the program is stopped, the cluster is healed, and what was done is judged.")
        program = self._program
        stopped = self._now()
        is_done = program is not None and program.exit_code() == 0
        if faults is not None:
            self._heal(faults, stopped)
        if self._healed:
            self._settle([each for each in (program, own) if each is not None])
        end = self._now()
        if program is not None:
            self._end(program, stopped)
        own_end = self._now()
        if own is not None:  # it went on until the cluster was healed, and now reads the rest
            own.stop(own_load.GRACE_S)
            if own.exit_code() != 0:
                self._notes.append(f"{LOAD} ended with exit code {own.exit_code()}")
        self._say("Reading back ...")
        clients = []
        if program is not None and self._has_reported(program, own):
            clients.append(self._client(PROGRAM, program, end, is_done))
        if own is not None:
            clients.append(self._client(LOAD, own, own_end, own.exit_code() == 0))
        verdict = conclude(
            max(end, own_end),
            clients,
            [*(together(map(self._fault, faults.done)) if faults is not None else []), *self._healed],
            self._incomplete,
            self._notes,
            allowed=self._asked.allowed,
            forbidden=self._asked.forbidden,
        )
        if any(each.client == LOAD and each.is_failure for each in verdict.judgements):
            self._keeps_topic = True
        return replace(verdict, is_interrupted=self._is_interrupted)

    # starting

    def _start_load(self) -> Program:
        """Returns when records of it have been acknowledged, read and committed. Raises AdminError, ClusterError."""
        number = f"{time.time_ns() // 1_000_000:x}"
        topic, group = f"ottla-verify-{number}", f"ottla-verify-readers-{number}"
        admin = KafkaAdmin(self._bootstrap_servers, properties=self._asked.client_settings)
        replication_factor = min(REPLICATION_FACTOR, len(admin.cluster().nodes))
        admin.create_topic(
            topic,
            partitions=LOAD_PARTITIONS,
            replication_factor=replication_factor,
            configs={
                "min.insync.replicas": str(min(MIN_INSYNC_REPLICAS, replication_factor)),
                "unclean.leader.election.enable": "false",
            },
        )
        self._topics.append(topic)
        self._started.callback(self._remove_topic, topic)
        protocol = self._asked.group_protocol
        paths = [str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")]
        program = self._start(
            (sys.executable, "-m", "tools.verify.own_load", topic, group, str(LOAD_PARTITIONS), protocol),
            lambda _: None,
            {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                own_load.PROPERTIES_VARIABLE: json.dumps(dict(self._asked.client_settings)),
            },
        )
        deadline = time.monotonic() + LOAD_START_TIMEOUT_S
        while not any(report.event == COMMITTED for report in program.reports.reports):
            exit_code = program.exit_code()
            if exit_code is not None or time.monotonic() > deadline:
                how = (
                    f"has committed nothing after {LOAD_START_TIMEOUT_S:.0f} s"
                    if exit_code is None
                    else f"ended by itself with exit code {exit_code}"
                )
                raise ClusterError(
                    f"{LOAD} on topic {topic} {how}: is the cluster well (`ottla cluster health`)? `--no-load` leaves it out"
                )
            time.sleep(STEP_S)
        return program

    def _start_program(self) -> None:
        """Raises ClusterError."""
        self._program = self._start(self._asked.command, self._passes, self._asked.environment)

    def _start(
        self,
        command: Sequence[str],
        passes: Callable[[bytes], None],
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Raises ClusterError."""
        file = self._files / f"reports-{time.monotonic_ns()}"
        program = Program(command, self._bootstrap_servers, file, Reports(time.monotonic, passes), environment)
        self._started.callback(program.close)
        return program

    def _fault_run(self) -> FaultRun | None:
        if self._cluster is None or not self._asked.faults:
            return None
        run = FaultRun(
            self._cluster,
            self._asked.faults,
            self._topics,
            lambda done: self._say(f"{self._at(done):7.2f} s  {done}"),
            self._now_ns,
        )
        self._started.callback(self._finish, run)
        return run

    # while it runs

    def _wait_for_a_report(self, program: Program) -> None:
        """The time of the run, and those of the faults, count from it: a JVM may take long to start."""
        while self._now() < self._asked.first_report_s:
            has_ended = program.exit_code() is not None
            if program.reports.reports:
                self._began = program.reports.reports[0].at
                return
            if has_ended:
                return  # they count from its start: no fault is done any more
            time.sleep(STEP_S)
        self._began = time.monotonic()

    def _wait(self, program: Program | None, own: Program | None, faults: FaultRun | None) -> None:
        """Until the program ends or the time is over."""
        own_has_ended = False
        while (now := self._now()) < self._asked.seconds:
            if faults is not None:
                faults.step(now)
            if program is not None and program.exit_code() is not None:
                return
            if own is not None and own.exit_code() is not None and not own_has_ended:
                own_has_ended = True
                self._incomplete.append(f"{LOAD} ended by itself after {now:.1f} s")
                if program is None:
                    return
            if program is not None:
                self._note_topics(program)
            time.sleep(STEP_S)

    def _note_topics(self, program: Program) -> None:
        for report in program.reports.reports[self._looked_at :]:
            if report.topic and report.topic not in self._topics:
                self._topics.append(report.topic)
        self._looked_at = len(program.reports.reports)

    # ending

    def _heal(self, faults: FaultRun, end: float) -> None:
        late = [fault for fault in self._asked.faults if fault.at_s > end]
        if late:
            self._incomplete.append(f"the run ended after {end:.1f} s, before: {', '.join(map(str, late))}")
        is_down = self._has_someone_down()
        if is_down:
            self._say(f"{self._now():7.2f} s  heal the cluster")
            self._healed.append(Fault(HEAL, "the cluster", None, self._now(), ()))
        self._finish(faults)
        failed = [done for done in faults.done if done.error]
        self._incomplete += [f"a fault could not be done: {done}" for done in failed]
        if faults.done:
            self._wait_until_healed()

    def _finish(self, faults: FaultRun) -> None:
        """Once."""
        if faults in self._finished:
            return
        self._finished.append(faults)
        try:
            faults.finish()
        except (ClusterError, ZooKeeperError) as problem:
            self._incomplete.append(f"the cluster could not be healed: {problem}")

    def _has_someone_down(self) -> bool:
        assert self._cluster is not None
        nodes = [self._cluster.zookeeper(), *map(self._cluster.broker, self._cluster.broker_ids)]
        return any(node is not None and node.state() is not State.RUNNING for node in nodes)

    def _wait_until_healed(self) -> None:
        assert self._cluster is not None
        reason = who_does_not_serve(self._cluster, HEAL_TIMEOUT_S)
        if reason:
            self._incomplete.append(f"the cluster is not healed after {HEAL_TIMEOUT_S:g} s: {reason}")

    def _settle(self, programs: Sequence[Program]) -> None:
        """Waits until what was acknowledged or consumed before is so again in every partition: clients need a while to reconnect."""
        waiting = {program: served_in(program.reports.reports, 0) for program in programs}
        looked_at = {program: len(program.reports.reports) for program in programs}
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            for program in programs:
                since = looked_at[program]
                looked_at[program] = len(program.reports.reports)
                waiting[program] -= served_in(program.reports.reports, since)
            if not any(waiting[program] for program in programs if program.exit_code() is None):
                return
            time.sleep(STEP_S)

    def _end(self, program: Program, end: float) -> None:
        code = program.exit_code()
        if code:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._incomplete.append(f"{PROGRAM} {how} after {end:.1f} s")
        if code is not None:
            program.close()
            return
        program.stop(self._asked.grace_s)
        if program.was_killed:
            self._notes.append(f"{PROGRAM} did not end within {self._asked.grace_s:g} s after SIGTERM and was killed")

    def _has_reported(self, program: Program, own: Program | None) -> bool:
        if program.reports.reports or program.reports.broken:
            return True
        if own is None:
            self._incomplete.append(
                f"{PROGRAM} reported nothing, so nothing can be judged; docs/VERIFY.md has the lines"
            )
        else:
            self._notes.append(f"{PROGRAM} reported nothing: only the cluster is judged, by {LOAD}")
        return False

    def _remove_topic(self, topic: str) -> None:
        if self._keeps_topic:
            self._say(f"The topic {topic} of {LOAD} is kept.")
            return
        try:
            KafkaAdmin(self._bootstrap_servers, properties=self._asked.client_settings).delete_topic(topic)
        except AdminError as problem:
            self._say(f"The topic {topic} of {LOAD} is still there: {problem}")

    # judging

    def _client(self, name: str, program: Program, end: float, is_finished: bool) -> Client:
        reports = [replace(report, at=report.at - self._began) for report in program.reports.reports]
        id_of = self._asked.id_of if name == PROGRAM else id_finder("key")
        logs, positions, incomplete = read_back(self._settings, reports, self._ends, id_of, self._asked.security)
        self._incomplete += incomplete
        broken = program.reports.broken
        unowned_s = self._asked.unowned_s
        return Client.of(
            name, reports, logs, positions, end, is_finished=is_finished, broken=broken, unowned_s=unowned_s
        )

    def _fault(self, done: DoneFault) -> Fault:
        return Fault(done.verb, done.role, done.broker, self._at(done), done.partitions, done.error, took_s=done.took_s)

    # time

    def _now(self) -> float:
        """Seconds since `_began`."""
        return time.monotonic() - self._began

    def _now_ns(self) -> int:
        """Since 1970, by a clock that does not jump."""
        return self._wall_ns + time.monotonic_ns()

    def _at(self, done: DoneFault) -> float:
        return (done.at_ns - self._wall_ns) / 1e9 - self._began


def together(faults: Iterable[Fault]) -> list[Fault]:
    """One for all brokers that were given the same rule about requests, or were healed of it, one after the other."""
    found: list[Fault] = []
    for fault in faults:
        last = found[-1] if found else None
        is_of_requests = fault.verb == HEAL or is_request_fault(str(fault))
        is_same = last is not None and (str(last), last.error) == (str(fault), fault.error)
        if last is not None and is_same and is_of_requests and fault.broker is not None:
            took_s = fault.at + fault.took_s - last.at
            found[-1] = replace(last, others=(*last.others, fault.broker), took_s=took_s)
        else:
            found.append(fault)
    return found


def served_in(reports: Sequence[Report], since: int) -> set[tuple[str, str, str, int | None]]:
    """(event, group, topic, partition) of what was acknowledged and consumed, from that report on."""
    return {
        (report.event, report.group, report.topic, report.partition)
        for report in reports[since:]
        if report.event in (ACKED, CONSUMED)
    }
