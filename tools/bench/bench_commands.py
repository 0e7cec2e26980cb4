"""`ottla bench`: loads for any Kafka address (`load`), and measurements of ottla on this machine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

from protocol.numbers import is_plain_number
from protocol.zk.session import ZkError, ZooKeeperUnavailable
from tools.bench import scale
from tools.bench.bench_cluster import ClusterShape
from tools.bench.compare.kafka_comparison_command import compare_command, floor_command
from tools.bench.controller_bench import ControllerBench, Reaction, Takeover
from tools.bench.load.load_commands import COMMANDS as LOADS
from tools.bench.profile import profile_command
from tools.cluster.java import JavaNotFound
from tools.cluster.local_cluster import ClusterError
from tools.cluster.ownership import own_servers
from tools.cluster.ports import NoFreePorts, free_ports
from tools.cluster.processes import stop_all
from tools.cluster.tables import aligned
from tools.cluster.zookeeper import EmbeddedZooKeeper, ZooKeeperError
from tools.numbers import IntRange

ZOOKEEPER_HEAP = "-Xmx1500m"
"""Enough for the two hundred thousand znodes of 100,000 partitions."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


@click.group()
def bench() -> None:
    """Measure any Kafka cluster under load, or parts of ottla on this machine.

    The loads are closed loops: a connection sends the next request when an earlier one is answered. While the cluster stands still,
    they send nothing, so percentiles hide it, and only the maximum shows it. `ottla replay run` sends at given times.
    """


for command in (*LOADS, compare_command, floor_command, profile_command):
    bench.add_command(command)


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """Parses `1000,10000`: whole numbers of at least 1."""

    name = "n[,n...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        words = str(value).split(",")
        if not all(is_plain_number(word.strip()) and int(word) > 0 for word in words):
            self.fail(
                f"{value!r}: expected whole numbers of at least 1, separated by commas, for example 1000,10000",
                param,
                ctx,
            )
        return tuple(map(int, words))


@bench.command("controller")
@click.option("--partitions", type=Sizes(), default="1000,10000,100000", show_default=True, help="Sizes to measure.")
@click.option("--replication-factor", type=IntRange(1), default=3, show_default=True)
@click.option(
    "--brokers", type=IntRange(2), default=3, show_default=True, help="Number of brokers, which only acknowledge."
)
@click.option(
    "--rounds", type=IntRange(1), default=3, show_default=True, help="Rounds to measure; the median one is shown."
)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def controller_command(
    partitions: Sequence[int], replication_factor: int, brokers: int, rounds: int, output: str
) -> None:
    """Measure a controller's election and reactions, with a real ZooKeeper and brokers that only acknowledge."""
    if replication_factor > brokers:
        raise click.UsageError(f"{replication_factor} replicas need at least as many brokers, found {brokers}")
    shapes = [ClusterShape(count, replication_factor, brokers) for count in partitions]
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        try:
            results = _measure(Path(directory), shapes, rounds)
        except (ZooKeeperError, JavaNotFound, NoFreePorts, ZooKeeperUnavailable, ZkError) as error:
            raise click.ClickException(str(error)) from None
        except TimeoutError:
            raise click.ClickException(
                "the controller did not take office in time; is the machine overloaded?"
            ) from None
    if output == "json":
        click.echo(json.dumps([{"kind": type(result).__name__.lower(), **asdict(result)} for result in results]))
        return
    click.echo(_takeovers([result for result in results if isinstance(result, Takeover)]))
    click.echo()
    click.echo(_reactions([result for result in results if isinstance(result, Reaction)]))


@bench.command("scale")
@click.option(
    "--partitions-per-broker", type=Sizes(), default="1000,5000,10000", show_default=True, help="Sizes to measure."
)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def scale_command(partitions_per_broker: Sequence[int], output: str) -> None:
    """Measure three brokers with many partitions, each on all three: create, kill, rolling restart, stop, start and delete."""
    phases: list[scale.Phase] = []
    failure = ""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        try:
            for phase in scale.run(Path(directory), partitions_per_broker, lambda text: click.echo(text, err=True)):
                phases.append(phase)
                click.echo("  " + "   ".join(scale.table([phase])[1][2:]), err=True)
        except (ClusterError, TimeoutError, RuntimeError) as error:
            failure = str(error)
    if output == "json":
        click.echo(json.dumps([asdict(phase) for phase in phases]))
    else:
        click.echo("\n".join(aligned(scale.table(phases))))
    if failure:
        raise click.ClickException(failure)


def _measure(directory: Path, shapes: Sequence[ClusterShape], rounds: int) -> list[Takeover | Reaction]:
    """All results, in order. Each size has its own chroot."""
    results: list[Takeover | Reaction] = []
    own_servers()
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
    zookeeper.create(free_ports(1)[0])
    try:
        zookeeper.start([ZOOKEEPER_HEAP])
        zookeeper.wait_ready(READY_TIMEOUT_S)
        for number, shape in enumerate(shapes):
            connect = f"{zookeeper.connect}/size-{number}"
            measurement = ControllerBench(connect, directory / "events.jsonl", shape, rounds, results.append)
            with tqdm(total=shape.partitions, desc=f"znodes of {shape.partitions} partitions", leave=False) as bar:

                def progress(written: int, bar: tqdm = bar) -> None:
                    bar.update(written)
                    if bar.n >= bar.total:
                        bar.set_description_str(f"takeovers with {bar.total} partitions")

                asyncio.run(measurement.run(progress))
    finally:
        stop_all([zookeeper.process], STOP_TIMEOUT_S)
    return results


def _takeovers(rows: Sequence[Takeover]) -> str:
    head = (
        "PARTITIONS",
        "CONTROLLER FAILOVER",
        "LOAD",
        "ELECT",
        "WRITE",
        "ANNOUNCE",
        "TOLD",
        "CPU",
        "WRITTEN",
        "SENT",
        "RSS",
    )
    return _table(
        head,
        [
            (
                str(row.partitions),
                row.scenario,
                *(
                    f"{ms:.0f} ms"
                    for ms in (row.load_ms, row.elect_ms, row.write_ms, row.announce_ms, row.told_ms, row.cpu_ms)
                ),
                str(row.written),
                f"{row.sent_mb:.1f} MB",
                f"{row.rss_mb:.0f} MB",
            )
            for row in rows
        ],
    )


def _reactions(rows: Sequence[Reaction]) -> str:
    return _table(
        ("PARTITIONS", "EVENT", "TOLD", "SENT"),
        [(str(row.partitions), row.event, f"{row.told_ms:.1f} ms", f"{row.sent_kb:.1f} KB") for row in rows],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(aligned([head, *rows]))
