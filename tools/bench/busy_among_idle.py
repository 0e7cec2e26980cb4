"""`python -m tools.bench.busy_among_idle`: do idle partitions and idle connections slow down the one partition that is busy?

There are two brokers, each alone in its cluster. Both have the busy partition. The second also has partitions and connections that
nobody uses. The bench produces to both in turns, and compares the CPU time of a broker for each request (/proc) and the requests per
second. The goal is at most 3 % more CPU time with 5,000 idle partitions and 1,000 idle connections.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from statistics import median

import click
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from tools.bench import produce_load
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers
from tools.numbers import IntRange

BUSY = "busy"
BROKER = 1
PARTITIONS_PER_TOPIC = 100
CREATE_TIMEOUT_S = 120.0


def start(directory: Path, partitions: int) -> LocalCluster:
    """A cluster of one broker, with the busy partition and so many idle ones."""
    cluster = LocalCluster(directory)
    cluster.create(brokers=1, overrides={})
    cluster.start()
    sizes = [min(PARTITIONS_PER_TOPIC, partitions - at) for at in range(0, partitions, PARTITIONS_PER_TOPIC)]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for name, size in [(BUSY, 1), *((f"idle-{number:03d}", size) for number, size in enumerate(sizes))]:
        topic = NewTopic(name, num_partitions=size, replication_factor=1)
        for future in admin.create_topics([topic], request_timeout=CREATE_TIMEOUT_S).values():
            future.result()
    return cluster


def measured(cluster: LocalCluster, connections: int, in_flight: int, seconds: float) -> tuple[float, float]:
    """(requests per second, microseconds of the broker's CPU time for each request). Raises ClickException."""
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    frame = produce_load.produce_frame(BUSY, 0, record_bytes=100, acks=1)
    totals, elapsed, cpu = uvloop.run(
        produce_load.run(host, int(port), frame, BUSY, connections, in_flight, seconds, cluster.pid(BROKER))
    )
    if totals.failure or not totals.answers:
        raise click.ClickException(totals.failure or "the broker did not answer")
    return totals.answers / elapsed, 1e6 * cpu / totals.answers


@click.command()
@click.option("--partitions", type=IntRange(0), default=5000, show_default=True, help="Idle partitions.")
@click.option("--idle-connections", type=IntRange(0), default=1000, show_default=True)
@click.option("--connections", type=IntRange(1), default=1, show_default=True, help="Connections that produce.")
@click.option("--in-flight", type=IntRange(1), default=5, show_default=True, help="Unanswered requests per connection.")
@click.option("--rounds", type=IntRange(1), default=5, show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="Of each measurement.")
def main(partitions: int, idle_connections: int, connections: int, in_flight: int, rounds: int, seconds: float) -> None:
    """Compare a broker that has only the busy partition with one that also has idle partitions and connections."""
    own_servers()
    rows: list[tuple[tuple[float, float], tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="ottla-busy-") as directory, contextlib.ExitStack() as open_ones:
        alone = start(Path(directory) / "alone", 0)
        open_ones.callback(alone.destroy)
        among = start(Path(directory) / "among", partitions)
        open_ones.callback(among.destroy)
        host, _, port = among.bootstrap_servers.rpartition(":")
        for _ in range(idle_connections):
            open_ones.enter_context(socket.create_connection((host, int(port))))
        for number in range(1, rounds + 1):
            one = measured(alone, connections, in_flight, seconds)
            other = measured(among, connections, in_flight, seconds)
            rows.append((one, other))
            click.echo(
                f"round {number}: alone {one[0]:,.0f} requests/s, {one[1]:.1f} us CPU each; "
                f"among idle ones {other[0]:,.0f} requests/s, {other[1]:.1f} us"
            )
    rate = median(other[0] / one[0] for one, other in rows)
    cpu = median(other[1] / one[1] for one, other in rows)
    click.echo(f"median of the ratios: {rate:.3f} of the requests/s, {cpu:.3f} of the CPU time for each request")


if __name__ == "__main__":
    main()
