"""`python -m tools.bench.outages`: for each fault, how long acks=all is unavailable and when the ISR is full again.

There are three real brokers (four for reassignments), three replicas, min.insync.replicas 2, a session timeout of 6 s, and a
librdkafka producer with its defaults. The outage is the longest time without an acknowledgement in any partition. "healed"
counts from the end of the fault; if a broker died, that is the start of its new process.
"""

from __future__ import annotations

import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from confluent_kafka import KafkaException

from protocol.zk.session import ZkError
from tools.bench.outage_faults import FAULTS, SESSION_S, Fault, Scene
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.ownership import own_servers
from tools.cluster.tables import aligned
from tools.cluster.zookeeper import ZooKeeperError
from tools.faults.reporting_clients import PROMPT, Load, log_of, read_everything
from tools.faults.verdict import Verdict
from tools.numbers import IntRange

PARTITIONS = 4
CALM_S = 1.0
"""Seconds of load before the fault."""
CLUSTER = {
    "zookeeper.session.timeout.ms": str(int(1000 * SESSION_S)),
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
}
RECORDS_PER_S = 400
TUNED = {"topic.metadata.refresh.interval.ms": 500, **PROMPT}
"""Without the metadata refresh, a client whose leader is paused looks for another leader only after its requests time out."""


@dataclass
class Row:
    """The samples of one fault, in seconds."""

    fault: Fault
    outages: list[float] = field(default_factory=list)
    healed: list[float] = field(default_factory=list)
    records: Verdict = field(default_factory=Verdict)


def measure(scene: Scene, row: Row, settings: Mapping[str, Any]) -> None:
    """Takes one sample: a new topic, the load, the fault, and a check of everything that was acknowledged."""
    replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
    scene.make_topic(replicas[:PARTITIONS], min_insync=2)
    servers = scene.cluster.bootstrap_servers
    with Load(servers, scene.topic, PARTITIONS, records_per_s=RECORDS_PER_S, settings=settings) as load:
        load.wait_for_each_partition(time.monotonic())
        time.sleep(CALM_S + scene.chance.uniform(0, 1))
        begin = time.monotonic()
        over = row.fault.do(scene)
        scene.cluster.wait_ready()  # before that, an ISR may appear full because it has not shrunk yet
        healed = max(scene.wait_for_full_isr(), over)
        load.wait_for_each_partition(time.monotonic())
    verdict = Verdict.of(load.stop(), log_of(read_everything(servers, scene.topic, PARTITIONS)), begin)
    row.outages.append(verdict.outage_s)
    row.healed.append(healed - over)
    row.records += verdict


def run(directory: Path, rows: Mapping[str, Row], samples: int, seed: int, settings: Mapping[str, Any]) -> None:
    """Fills the rows. Raises ClusterError; raises TimeoutError if something does not recover."""
    chance = random.Random(seed)
    for brokers in sorted({row.fault.brokers for row in rows.values()}):
        own_servers()
        cluster = LocalCluster(directory / f"brokers-{brokers}")
        try:
            cluster.create(brokers=brokers, overrides=CLUSTER)
            cluster.start()
            for name, row in rows.items():
                for sample in range(samples if row.fault.brokers == brokers else 0):
                    click.echo(f"{name}, {sample + 1} of {samples}", err=True)
                    cluster.wait_ready()
                    measure(Scene(cluster, f"{name}-{sample}", chance), row, settings)
        finally:
            cluster.destroy()


def table(rows: Sequence[Row]) -> str:
    head = ("FAULT", "OUTAGE", "GOAL", "KAFKA", "HEALED", "GOAL", "KAFKA", "LOST", "DOUBLED")
    return "\n".join(
        aligned(
            [
                head,
                *(
                    (
                        row.fault.title,
                        _figure(row.outages),
                        row.fault.goal_outage,
                        row.fault.kafka_outage,
                        _figure(row.healed),
                        row.fault.goal_healed,
                        row.fault.kafka_healed,
                        str(len(row.records.lost) + len(row.records.failed)),
                        str(row.records.doubled),
                    )
                    for row in rows
                ),
            ]
        )
    )


def _figure(samples: Sequence[float]) -> str:
    """Median / worst."""
    if not samples:
        return "not measured"
    return f"{statistics.median(samples):.2f} / {max(samples):.2f}"


def _names(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise click.BadParameter(
            f"unknown fault {', '.join(unknown) or '(none given)'}: the faults are {', '.join(FAULTS)}"
        )
    return names


@click.command()
@click.option("--seed", type=IntRange(), default=None, help="Seed for victims and times; a random one is printed.")
@click.option("--faults", callback=_names, default=",".join(FAULTS), help="Names of faults, separated by commas.")
@click.option("--samples", type=IntRange(1), default=1, show_default=True, help="Samples of each fault.")
@click.option("--tuned", is_flag=True, help="Use short client back-offs instead of librdkafka's defaults.")
def main(seed: int | None, faults: list[str], samples: int, tuned: bool) -> None:
    """Measure the outage of acks=all per fault: ours (median / worst, in seconds), the goal and real Kafka 3.9.1."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    click.echo(f"seed {seed}, librdkafka {'tuned: ' + str(TUNED) if tuned else 'with its defaults'}")
    rows = {name: Row(FAULTS[name]) for name in faults}
    with tempfile.TemporaryDirectory(prefix="ottla-outages-") as directory:
        try:
            run(Path(directory), rows, samples, seed, TUNED if tuned else {})
        except (ClusterError, KafkaException, ZkError, ZooKeeperError, OSError) as error:
            click.echo(table(list(rows.values())))
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise click.ClickException(reason) from None
    click.echo(table(list(rows.values())))
    if any(row.records.problems(once_and_in_order=False) for row in rows.values()):
        raise click.ClickException("acknowledged records were lost, or records were refused for good")


if __name__ == "__main__":
    main()
