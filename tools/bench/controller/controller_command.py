"""`ottla bench controller`: its options and its tables."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

from protocol.zk.session import ZkError, ZooKeeperUnavailable
from tools.bench.controller.cluster_znodes import ClusterShape
from tools.bench.controller.controller_bench import ControllerBench, Reaction, Takeover
from tools.cluster.ownership import own_servers
from tools.cluster.ports import free_ports
from tools.cluster.processes import stop_all
from tools.cluster.tables import aligned
from tools.cluster.zookeeper import EmbeddedZooKeeper
from tools.failures import ExpectedError
from tools.numbers import SIZES, IntRange

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


@click.command("controller")
@click.option("--partitions", type=SIZES, default="1000,10000,100000", show_default=True, help="Sizes to measure.")
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
        except (ExpectedError, ZooKeeperUnavailable, ZkError) as error:
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


def _measure(directory: Path, shapes: Sequence[ClusterShape], rounds: int) -> list[Takeover | Reaction]:
    """All results, in order. Each size has its own chroot."""
    results: list[Takeover | Reaction] = []
    own_servers()
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
    zookeeper.create(free_ports(1)[0])
    try:
        zookeeper.start(partitions=max(shape.partitions for shape in shapes))
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
