"""`ottla demo`: a real cluster, a real event stream through it, a killed leader, and the measurements."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tqdm import tqdm

from tools.admin.failures import AdminError, TopicExists
from tools.admin.kafka_admin import KafkaAdmin
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers
from tools.replay.clients import QUIET, ReplayError, ignore_error, partition_leaders
from tools.replay.group_reader import MEMBERS, GroupReader, choose_name
from tools.replay.guard import ClusterGuard
from tools.replay.interrupts import ignore_from_now
from tools.replay.leader_kill import LeaderKill
from tools.replay.plan import OutputDirectory
from tools.replay.runner import Replay, Target, exit_code, print_summary
from tools.replay.schedule import busiest_partition
from tools.replay.trace import TOPIC, write_flights_trace

PARTITIONS = 6
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
GROUP = "flight-readers"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo's options. `bootstrap_servers`: another cluster, which is not started, killed or stopped."""

    start_day: date
    days: int
    speed: float
    brokers: int
    kill: bool
    output: Path
    directory: Path | None
    bootstrap_servers: str | None
    zookeeper: str | None


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
    output = OutputDirectory(options.output)
    output.path.mkdir(parents=True, exist_ok=True)
    write_flights_trace(output.trace, options.start_day, options.days)
    cluster = None
    if options.bootstrap_servers is None:
        cluster = start_cluster(options, started)
    bootstrap_servers = options.bootstrap_servers or str(cluster.bootstrap_servers if cluster else "")
    is_new = create_topic(bootstrap_servers, options.brokers)
    replay = Replay(Target(bootstrap_servers, TOPIC), output.trace, output, options.speed)
    started.callback(replay.job.stop)
    click.echo(
        f"\nReplaying {options.days} day(s) of flights from {options.start_day}: {replay.summary.produces:,} events, "
        f"{options.speed:,.0f} times as fast as in reality, in about {replay.plan.duration_s:.0f} s."
    )
    if cluster is None or not options.kill:
        group = consumer_group(replay, is_new, None)
        started.callback(group.stop)
        analysis = replay.run(group=group)
    else:
        partition = busiest_partition(replay.summary.produces_by_key, replay.plan.partition_count)
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap_servers, "error_cb": ignore_error})
        group = consumer_group(replay, is_new, leader_now(admin, partition))
        started.callback(group.stop)
        kill = leader_kill(cluster, admin, partition, replay, group)
        analysis = replay.run(kill.step, group)
    print_summary(analysis, output)
    if cluster is not None:
        print_next_steps(bootstrap_servers, cluster_directory(options), output, group.name)
    return exit_code(analysis)


def cluster_directory(options: DemoOptions) -> Path:
    return options.directory if options.directory is not None else options.output / "cluster"


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
        cluster.create(brokers=options.brokers, zookeeper=own_chroot(options.zookeeper))
    with timed(f"Starting ZooKeeper and {options.brokers} brokers under {directory}"):
        cluster.start(START_TIMEOUT_S)
        cluster.wait_ready(START_TIMEOUT_S)
    print_nodes(cluster, directory)
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


def print_nodes(cluster: LocalCluster, directory: Path) -> None:
    click.echo(f"\n  {'node':<12}{'address':<24}{'pid':>8}  directory")
    click.echo(f"  {'zookeeper':<12}{cluster.zookeeper_connect:<24}{'':>8}  {directory / 'zookeeper'}")
    for broker, address in zip(cluster.broker_ids, cluster.bootstrap_servers.split(","), strict=True):
        name = f"broker {broker}"
        click.echo(f"  {name:<12}{address:<24}{cluster.pid(broker) or '-':>8}  {directory / f'broker-{broker}'}")
    click.echo(f"\n  bootstrap servers: {cluster.bootstrap_servers}\n")


def create_topic(bootstrap_servers: str, brokers: int) -> bool:
    """Creates the topic through the public API; returns False if it already exists and is used unchanged."""
    replication_factor = min(REPLICATION_FACTOR, brokers)
    min_insync = min(MIN_INSYNC_REPLICAS, replication_factor)
    try:
        admin = KafkaAdmin(bootstrap_servers)
        admin.cluster()  # fails within seconds if no broker answers
        admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=replication_factor,
            configs={"min.insync.replicas": str(min_insync)},
        )
    except TopicExists:
        click.echo(f"Topic {TOPIC} exists and is used unchanged; reading starts at its end.")
        return False
    except AdminError as problem:
        raise ReplayError(str(problem)) from None
    click.echo(
        f"Topic {TOPIC}: {PARTITIONS} partitions, replication factor {replication_factor}, "
        f"min.insync.replicas={min_insync}"
    )
    return True


def leader_now(admin: AdminClient, partition: int) -> int | None:
    """The leader's id; None if it is unknown at the moment."""
    try:
        return partition_leaders(admin, TOPIC).get(partition)
    except KafkaException:
        return None


def consumer_group(replay: Replay, is_new: bool, broker: int | None) -> GroupReader:
    """The group that reads along. `broker` (the one to be killed) coordinates it, if a suitable name is found. An existing
    topic may have had groups; then the name is new."""
    plan = replay.plan
    base = GROUP if is_new else f"{GROUP}-{plan.run}"
    name, coordinator = choose_name(plan.bootstrap_servers, base, broker)
    click.echo(
        f"Group {name}: {MEMBERS} consumers share the {plan.partition_count} partitions and commit their offsets; "
        f"its coordinator is broker {coordinator}"
    )
    return GroupReader(name, coordinator, plan, replay.output)


def leader_kill(
    cluster: LocalCluster, admin: AdminClient, partition: int, replay: Replay, group: GroupReader
) -> LeaderKill:
    """The demo's fault, at the partition with the most events."""
    return LeaderKill(
        cluster,
        lambda: partition_leaders(admin, TOPIC),
        partition,
        replay.plan.duration_s,
        replay.output,
        lambda text: tqdm.write(f"  {text}", file=sys.stdout),
        lambda broker: f", and the coordinator of group {group.name}" if broker == group.coordinator else "",
    )


def print_next_steps(bootstrap_servers: str, directory: Path, output: OutputDirectory, group: str) -> None:
    found = shutil.which("ottla")
    command = "ottla" if found else str(Path(sys.executable).parent / "ottla")
    click.echo("\nTo try next:")
    for line, what in (
        (f"{command} cluster start --dir {directory}", "the same cluster again, with all its data"),
        (f"{command} topic describe {TOPIC} --bootstrap-server {bootstrap_servers}", "leaders and replicas"),
        (
            f"{command} group describe {group} --bootstrap-server {bootstrap_servers}",
            "the consumer group's committed offsets; it has no members any more",
        ),
        (f"kcat -C -e -b {bootstrap_servers} -t {TOPIC}", "the events, by any Kafka client"),
        (f"{command} cluster kill 1 --dir {directory}", "inject a fault yourself; restart-broker 1 ends it"),
        (f"{command} replay run --trace {output.trace} --bootstrap-server {bootstrap_servers}", "the replay again"),
        (f"{command} cluster stop --dir {directory}", "stop the cluster"),
    ):
        click.echo(f"  {line}\n      {what}")
