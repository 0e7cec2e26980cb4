"""`ottla cluster health`, and `ottla cluster status --bootstrap-server`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protocol.types import Assignment, TopicPartition
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.leaderless import causes
from tools.admin.naming import Where, zookeeper_option, zookeeper_tls_option
from tools.cluster.health import Health, assess, health_json, health_lines, status_json, status_lines, unreachable
from tools.cluster.refusing_nodes import refusing
from tools.cluster.zookeeper_place import ZooKeeperPlace, named_place, place_of_brokers
from tools.failures import AdminError, NoClusterNamed, errors_in_one_line
from tools.numbers import FloatRange
from tools.terminal import echo, echo_lines

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

WATCH_S = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="keep running, and print every change")
@click.option("--exit-when-healthy", is_flag=True, help="wait until the cluster is healthy")
@click.option("--timeout", type=FloatRange(min=0), metavar="S", help="wait at most this many seconds")
@zookeeper_option("also look at the nodes in this ZooKeeper; default: that of a local cluster")
@zookeeper_tls_option()
@connection_options
def health(
    watch: bool,
    exit_when_healthy: bool,
    timeout: float | None,
    zookeeper: str | None,
    zk_tls_config: Path | None,
    where: Where,
    output: str,
) -> None:
    """Report whether the cluster is healthy. The exit code is 0 if it is, 1 if not.

    A broker that was killed stays registered until its ZooKeeper session ends. It is down from the moment its port refuses connections.
    """
    stays = watch or exit_when_healthy
    if timeout is not None and not stays:
        raise click.UsageError("--timeout is for --watch and --exit-when-healthy.")
    if zk_tls_config is not None and zookeeper is None:
        raise click.UsageError("--zk-tls-config-file is for --zookeeper.")
    deadline = None if timeout is None else time.monotonic() + timeout
    with errors_in_one_line():
        place = None if zookeeper is None else named_place(zookeeper, zk_tls_config)
        try:
            connect(where)  # raises for bad options, which no waiting corrects
        except NoClusterNamed:
            if not stays:
                raise  # else it is waited for: `ottla cluster start` may be about to create its run directory
        shown: Health | None = None
        while True:
            now = look(where, place)
            if now != shown:
                _show(now, output)
                shown = now
            is_over = deadline is not None and time.monotonic() >= deadline
            if not stays or is_over or (exit_when_healthy and now.is_healthy):
                break
            time.sleep(WATCH_S)
    if not shown.is_healthy:
        sys.exit(1)


def look(where: Where, zookeeper: ZooKeeperPlace | None = None) -> Health:
    """The cluster's health now; `unreachable` if no broker answers.

    ZooKeeper is read first: a partition that had no state there, and is not in the metadata afterwards, was left out of it.

    All brokers of a local cluster are expected to be live. Otherwise a cluster that starts would be healthy
    as soon as its first broker serves.
    """
    from tools.cluster.znode_problems import find  # it loads kazoo: only when needed

    try:
        admin = connect(where)
        directory = where.run_directory()
        znodes = None
        if zookeeper is not None:
            znodes = find(zookeeper)
        elif directory is not None:
            with contextlib.suppress(AdminError):  # the brokers may be well without it, until one of them fails
                of_cluster = place_of_brokers(directory)
                znodes = None if of_cluster is None else find(of_cluster)
        cluster = admin.cluster()
        why = causes(cluster.partitions(), cluster.live_brokers, admin)
        under_way = reassignments(admin) or {}
        return assess(cluster, under_way, why, where.expected_brokers(), znodes, refusing(cluster.nodes))
    except AdminError as problem:
        return unreachable(str(problem))


def remote_status(where: Where, output: str) -> None:
    """Prints the nodes and counts of a cluster, from its public API. The exit code is 1 unless it is healthy."""
    with errors_in_one_line():
        admin = connect(where)
        cluster = admin.cluster()
        under_way = reassignments(admin)
        found = assess(cluster, under_way or {}, why_down=refusing(cluster.nodes))
        status = status_json(cluster, under_way, found, {node.id: node.rack for node in cluster.nodes})
    if output == "json":
        print_json(status)
    else:
        echo_lines(status_lines(status))
    if not found.is_healthy:
        sys.exit(1)


def reassignments(admin: KafkaAdmin) -> Mapping[TopicPartition, Assignment] | None:
    """The reassignments in progress; None if the cluster does not answer, for example without a controller."""
    try:
        return admin.reassignments(patience_s=0)
    except AdminError:
        return None


def _show(now: Health, output: str) -> None:
    if output == "json":
        print_json(health_json(now))
        return
    echo_lines(health_lines(now))
    if now.unreachable is not None:
        echo(now.unreachable, err=True)
