"""`python -m tools.bench.idle_followers`: the cost of partitions that nobody writes to.

There are two brokers: one leads all partitions, the other follows them. Once both are at rest, the bench measures the CPU time of
both processes (/proc) for `--seconds`. The goal is below 3 % of a core for 5,000 partitions.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from tools.bench.produce_load import cpu_seconds
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ownership import own_servers

PARTITIONS_PER_TOPIC = 100
CREATE_TIMEOUT_S = 120.0
LEADER, FOLLOWER = 1, 2
SETTLE_STEP_S = 2.0
SETTLE_STEPS_MAX = 30
BUSY_SHARE = 0.2


def create_topics(cluster: LocalCluster, partitions: int) -> None:
    """Creates topics of a hundred partitions with broker 1 as the preferred leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    sizes = [min(PARTITIONS_PER_TOPIC, partitions - at) for at in range(0, partitions, PARTITIONS_PER_TOPIC)]
    for number, size in enumerate(sizes):
        topic = NewTopic(f"idle-{number:03d}", num_partitions=size, replica_assignment=[[LEADER, FOLLOWER]] * size)
        for future in admin.create_topics([topic], request_timeout=CREATE_TIMEOUT_S).values():
            future.result()


def settle(cluster: LocalCluster) -> None:
    """Waits until each broker uses less than BUSY_SHARE of a core, for at most SETTLE_STEPS_MAX steps."""
    for _ in range(SETTLE_STEPS_MAX):
        before = total_cpu(cluster)
        time.sleep(SETTLE_STEP_S)
        after = total_cpu(cluster)
        if all(after[broker] - before[broker] < BUSY_SHARE * SETTLE_STEP_S for broker in before):
            return


def total_cpu(cluster: LocalCluster) -> dict[int, float]:
    """CPU seconds that each broker has used until now."""
    return {broker: cpu_seconds(cluster.pid(broker)) for broker in cluster.broker_ids}


@click.command()
@click.option("--partitions", default=5000, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
def main(partitions: int, seconds: float) -> None:
    """Measure the share of a core that the leader and the follower of idle partitions use."""
    with tempfile.TemporaryDirectory(prefix="ottla-idle-") as directory:
        own_servers()
        cluster = LocalCluster(Path(directory) / "cluster")
        try:
            cluster.create(brokers=2, overrides={})
            cluster.start()
            create_topics(cluster, partitions)
            settle(cluster)
            began, before = time.perf_counter(), total_cpu(cluster)
            time.sleep(seconds)
            elapsed, after = time.perf_counter() - began, total_cpu(cluster)
        finally:
            cluster.destroy()
    for broker, role in ((LEADER, "leader"), (FOLLOWER, "follower")):
        share = (after[broker] - before[broker]) / elapsed
        click.echo(f"{role:8} of {partitions} idle partitions: {share:.2%} of a core")


if __name__ == "__main__":
    main()
