"""`ottla demo`: a real cluster, a real event stream through it, a killed leader, and the measurements."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import click
import numpy
import pyarrow.compute

from tools.admin.naming import client_properties_of
from tools.cluster.guard import ClusterGuard
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers
from tools.cluster.secured.files import ADMIN
from tools.cluster.views import cluster_json, node_table
from tools.faults.processes import ProcessCluster
from tools.faults.roles import Roles
from tools.faults.script import FaultRun, ScriptedFault
from tools.groups.kafka_groups import KafkaGroups
from tools.interrupts import ignore_from_now
from tools.replay.run.cpu_meter import broker_pids
from tools.replay.run.driver import Options, Replay, facts_of, say_fault
from tools.replay.run.outcome import say_outcome
from tools.replay.run.plan import GROUP_NAMES, OutputDirectory, ReplayError
from tools.replay.traces.flights import TOPIC, write_flights_trace
from tools.replay.traces.schema import PRODUCE, Trace
from tools.terminal import echo_lines
from tools.wire.client_properties import read_security
from tools.wire.security import PLAINTEXT, Security

PARTITIONS = 6
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
GROUP = "flight-readers"
START_TIMEOUT_S = 60.0
TASKS = 2
KILLS = [(0.45, 0.70)]
"""(kill, restart), as fractions of the replay: in the default week, a busy morning and an evening later."""
YEAR_KILLS = [(0.2, 0.35), (0.6, 0.75)]
LONG_DAYS = 100
LONG_FETCH_GAP_NS = 10_000_000
"""In a replay of so many days, a reader fetches once in this time of the replay; a fetch for each event is more than two cores serve."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo's options. `bootstrap_server`: another cluster, which is not started, killed or stopped."""

    start_day: date
    days: int
    speed: float
    brokers: int
    kill: bool
    out: Path
    directory: Path | None
    bootstrap_server: str | None
    zookeeper: str | None
    secure: bool = False
    """Whether a cluster that the demo makes is secured."""
    security: Security = PLAINTEXT
    """How to connect to `bootstrap_server`."""
    zookeeper_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the brokers of a cluster that the demo makes need for `zookeeper`."""


def run_demo(options: DemoOptions) -> int:
    """Runs the demo and returns the exit code. Everything that was started is stopped, however the demo ends."""
    began = time.monotonic()
    started = ExitStack()
    try:
        code = run_steps(options, started)
    finally:
        try:
            ignore_from_now()
        finally:  # an interrupt may come first
            started.close()
    click.echo(f"\nEverything that was started has been stopped. It took {time.monotonic() - began:.0f} s.")
    return code


def run_steps(options: DemoOptions, started: ExitStack) -> int:
    output = OutputDirectory(options.out)
    trace = output.path / "trace"
    output.path.mkdir(parents=True, exist_ok=True)
    cluster = None
    if options.bootstrap_server is None:
        cluster = start_cluster(options, started)
    bootstrap_servers = options.bootstrap_server or str(cluster.bootstrap_servers if cluster else "")
    config = None if cluster is None else client_properties_of(cluster.directory)
    security = options.security if config is None else read_security(config, ignores_others=True)
    shutil.rmtree(trace, ignore_errors=True)
    fetch_gap_ns = round(LONG_FETCH_GAP_NS * options.speed) if options.days > LONG_DAYS else 0
    write_flights_trace(trace, options.start_day, options.days, fetch_gap_ns, GROUP)
    asked = Options(
        trace=trace,
        bootstrap_servers=bootstrap_servers,
        speeds=[options.speed],
        tasks=TASKS,
        create_topics=True,
        replication_factor=min(REPLICATION_FACTOR, options.brokers),
        security=security,
        broker_pids=None if cluster is None else broker_pids(cluster),
    )
    replay = Replay(asked, facts_of(Trace(trace)), output)
    group = GROUP_NAMES + GROUP
    started.callback(replay.job.stop)
    seconds = replay.plan.seconds or 0.0
    click.echo(
        f"\nReplaying {options.days} day(s) of flights from {options.start_day}: {replay.plan.trace_rows:,} operations, "
        f"{options.speed:,.0f} times as fast as in reality, in about {seconds:.0f} s,\n"
        f"to topic {TOPIC} with {replay.plan.partitions[TOPIC]} partitions. Consumer group {group} reads along."
    )
    faults = None
    if cluster is not None and options.kill:
        target = ProcessCluster(cluster)
        partition = busiest_partition(
            Trace(trace), led_by_coordinator(Roles(target), KafkaGroups(bootstrap_servers, config), group)
        )
        scripted = faults_at(partition, seconds, options.days)
        faults = FaultRun(target, scripted, [TOPIC], say_fault, replay.control.clock.now_ns)
        started.callback(faults.finish)
    verdict = replay.run(faults)
    click.echo("\nMeasured:")
    code = say_outcome(output, verdict)
    if cluster is not None:
        print_next_steps(bootstrap_servers, cluster_directory(options), output, group)
    return code


def faults_at(partition: int, seconds: float, days: int) -> list[ScriptedFault]:
    """A kill of the partition's leader and its restart, at fractions of the replay; in a whole year twice."""
    kills = YEAR_KILLS if days > LONG_DAYS else KILLS
    return [
        fault
        for kill, restart in kills
        for fault in (
            ScriptedFault("kill", f"leader of {TOPIC}-{partition}", kill * seconds),
            ScriptedFault("restart", "it", restart * seconds),
        )
    ]


def led_by_coordinator(roles: Roles, groups: KafkaGroups, group: str) -> set[int]:
    """The topic's partitions that the group's coordinator leads, so one kill takes a leader and a coordinator; all if it leads none."""
    (view,) = groups.describe_groups([group])
    partitions = roles.partitions(TOPIC)
    led = {number for number, of in partitions.items() if view.coordinator and of.leader == view.coordinator.id}
    return led or set(partitions)


def busiest_partition(trace: Trace, among: set[int]) -> int:
    """The partition with the most produced records, where the loss of a leader is visible at once."""
    load = numpy.zeros(PARTITIONS, numpy.int64)
    for batch in trace.batches(["op", "key_hash", "records"]):
        is_produce = pyarrow.compute.equal(batch["op"], PRODUCE)
        chosen = batch.filter(is_produce)
        numpy.add.at(load, chosen["key_hash"].to_numpy() % PARTITIONS, chosen["records"].to_numpy())
    return max(among, key=lambda partition: int(load[partition]))


def cluster_directory(options: DemoOptions) -> Path:
    return options.directory if options.directory is not None else options.out / "cluster"


@contextmanager
def timed(what: str) -> Iterator[None]:
    click.echo(f"{what} ...", nl=False)
    began = time.monotonic()
    yield
    click.echo(f" {time.monotonic() - began:.1f} s")


def start_cluster(options: DemoOptions, started: ExitStack) -> LocalCluster:
    """Starts ZooKeeper and the brokers and prints their addresses."""
    directory = cluster_directory(options)
    if options.directory is None:
        remove_earlier_cluster(directory)
    cluster = LocalCluster(directory)
    if running := cluster.running():
        names = ", ".join(process.name for process in running)
        raise ReplayError(
            f"{directory} is in use by a running cluster ({names}): `ottla cluster stop --dir {directory}` stops it; "
            "with --bootstrap-server instead of --dir, the demo uses it"
        )
    own_servers()
    started.callback(ClusterGuard(directory).stop)
    started.callback(cluster.stop)
    if not (directory / "broker-1").exists():
        in_sync = str(min(MIN_INSYNC_REPLICAS, options.brokers))
        settings = {**options.zookeeper_settings, "min.insync.replicas": in_sync}
        zookeeper = own_chroot(options.zookeeper)
        cluster.create(brokers=options.brokers, zookeeper=zookeeper, overrides=settings, secure=options.secure)
    elif options.secure and cluster.secured is None:
        raise ReplayError(f"--secure: {directory} has a cluster that is not secured; use another --dir")
    with timed(f"Starting ZooKeeper and {options.brokers} brokers under {directory}"):
        cluster.start(START_TIMEOUT_S)
        cluster.wait_ready(START_TIMEOUT_S)
    print_nodes(cluster)
    return cluster


def remove_earlier_cluster(directory: Path) -> None:
    """Removes the cluster of the last demo from the demo's own directory, because its log has that demo's events."""
    if directory.exists():
        LocalCluster(directory).destroy()
        shutil.rmtree(directory, ignore_errors=True)


def own_chroot(zookeeper: str | None) -> str | None:
    """Adds a chroot to an outside ZooKeeper without one, so that the new cluster does not find old topics."""
    if zookeeper is None or "/" in zookeeper:
        return zookeeper
    return f"{zookeeper}/ottla-demo-{time.time_ns() // 1_000_000}"


def print_nodes(cluster: LocalCluster) -> None:
    lines = [
        "",
        *node_table(cluster_json(cluster), with_state=False),
        "",
        f"bootstrap servers: {cluster.bootstrap_servers}",
        "",
    ]
    echo_lines(f"  {line}" if line else "" for line in lines)


def print_next_steps(bootstrap_servers: str, directory: Path, output: OutputDirectory, group: str) -> None:
    found = shutil.which("ottla")
    command = "ottla" if found else str(Path(sys.executable).parent / "ottla")
    secured = LocalCluster(directory).secured
    connection = (
        f"-b {bootstrap_servers}" if secured is None else f"-F {secured.path / ADMIN / 'librdkafka.properties'}"
    )
    click.echo("\nTo try next:")
    for line, what in (
        (f"{command} cluster start --dir {directory}", "the same cluster again, with all its data"),
        (f"{command} topic describe {TOPIC} --dir {directory}", "leaders and replicas"),
        (
            f"{command} group describe {group} --dir {directory}",
            "the consumer group's committed offsets; it has no members any more",
        ),
        (f"kcat -C -e {connection} -t {TOPIC}", "the events, by any Kafka client"),
        (f"{command} cluster kill 1 --dir {directory}", "inject a fault yourself; restart-broker 1 ends it"),
        (
            f"{command} replay run {output.path / 'trace'} --speed 10080 --dir {directory}",
            "the replay again",
        ),
        (f"{command} cluster stop --dir {directory}", "stop the cluster"),
    ):
        click.echo(f"  {line}\n      {what}")
