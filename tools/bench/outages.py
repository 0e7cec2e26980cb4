"""`python -m tools.bench.outages`: how long acks=all is out, per fault, and how long until the ISR is full again.

Three real brokers (four for reassignments), three replicas, min.insync.replicas 2, a session time-out of 6 s, and a
librdkafka producer at its defaults. The outage is the longest time that any partition was without an acknowledgement;
"healed" counts from the end of the fault, which is the start of a broker's process where one died.
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
from tools.bench.outage_load import OutageLoad
from tools.cluster.local_cluster import ClusterError, LocalCluster
from tools.cluster.ownership import own_servers
from tools.cluster.tables import aligned
from tools.cluster.zookeeper import ZooKeeperError
from tools.numbers import IntRange

PARTITIONS = 4
CALM_S = 1.0
"""Of load before the fault."""
CLUSTER = {
    "zookeeper.session.timeout.ms": str(int(1000 * SESSION_S)),
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
}
TUNED = {
    "topic.metadata.refresh.interval.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
}
"""Without the first, a client whose leader stands still does not ask for another one before its requests time out."""


@dataclass
class Row:
    """The samples of one fault, in seconds."""

    fault: Fault
    outages: list[float] = field(default_factory=list)
    healed: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    failed: int = 0


def measure(scene: Scene, row: Row, settings: Mapping[str, Any]) -> None:
    """One sample: a topic of its own, the load, the fault, and a look at everything that was acknowledged."""
    replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
    scene.make_topic(replicas[:PARTITIONS], min_insync=2)
    load = OutageLoad(scene.cluster.bootstrap_servers, scene.topic, PARTITIONS, settings)
    load.begin()
    begin = time.monotonic()
    load.wait_for_each_partition(begin)
    time.sleep(CALM_S + scene.chance.uniform(0, 1))
    begin = time.monotonic()
    over = row.fault.do(scene)
    scene.cluster.wait_ready()  # before that, an ISR may look full that has not been shrunk yet
    healed = max(scene.wait_for_full_isr(), over)
    load.wait_for_each_partition(time.monotonic())
    load.end()
    lost, doubled = load.lost()
    row.outages.append(load.outage_s(begin))
    row.healed.append(healed - over)
    row.lost += lost
    row.doubled += doubled
    row.failed += len(load.failures)


def run(directory: Path, rows: Mapping[str, Row], samples: int, seed: int, settings: Mapping[str, Any]) -> None:
    """Fills the rows. Raises ClusterError, or TimeoutError when something does not heal."""
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
                        str(row.lost + row.failed),
                        str(row.doubled),
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
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'}: known are {', '.join(FAULTS)}")
    return names


@click.command()
@click.option("--seed", type=IntRange(), default=None, help="Chooses victims and moments; a random one is printed.")
@click.option("--faults", callback=_names, default=",".join(FAULTS), help="Names with commas between them.")
@click.option("--samples", type=IntRange(1), default=1, show_default=True, help="Of each fault.")
@click.option("--tuned", is_flag=True, help="Short back-offs of the client, instead of librdkafka's defaults.")
def main(seed: int | None, faults: list[str], samples: int, tuned: bool) -> None:
    """How long acks=all is out, per fault: ours (median / worst, in seconds) beside the goal and real Kafka 3.9.1."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    click.echo(f"seed {seed}, librdkafka {'tuned: ' + str(TUNED) if tuned else 'at its defaults'}")
    rows = {name: Row(FAULTS[name]) for name in faults}
    with tempfile.TemporaryDirectory(prefix="ottla-outages-") as directory:
        try:
            run(Path(directory), rows, samples, seed, TUNED if tuned else {})
        except (ClusterError, KafkaException, ZkError, ZooKeeperError, OSError) as error:
            click.echo(table(list(rows.values())))
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise click.ClickException(reason) from None
    click.echo(table(list(rows.values())))
    if any(row.lost or row.failed for row in rows.values()):
        raise click.ClickException("acknowledged records were lost, or records were refused for good")


if __name__ == "__main__":
    main()
