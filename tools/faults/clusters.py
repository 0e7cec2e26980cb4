"""The cluster that faults hit, from the option that names one (`--dir`, `--compose`, `--fault-command`, `--links`); what all share."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tools.cluster.processes import ClusterError
from tools.cluster.readiness import not_ready
from tools.faults.cluster import Cluster

SESSION_DEFAULT_S = 6.0
"""Of the containers of this project."""
ANSWER_TIMEOUT_S = 2.0
POLL_S = 0.2


def find_target(
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    links: Path | None = None,
) -> Cluster | None:
    """None without an option that names one. `links` and `fault_command` together: requests by the first, all else by the second.

    Raises ClusterError, NoBootstrapServer, UsageError.
    """
    if sum(option is not None for option in (directory, project, links or fault_command)) > 1:
        names = "--dir, --compose and --fault-command" if links is None else "--dir, --compose and --links"
        raise click.UsageError(f"{names} name a cluster each; give one of them")
    if links is not None and bootstrap_server is not None:
        raise click.UsageError("--links and --bootstrap-server name a cluster each; give one of them")
    # Imported late: each needs libraries that the others do not.
    if links is not None:
        from tools.faults.proxied import ProxiedCluster

        return ProxiedCluster(links, fault_command)
    if fault_command is not None:
        from tools.admin.bootstrap import addresses_of, find_bootstrap_servers
        from tools.faults.commanded import CommandedCluster, brokers_of

        servers = find_bootstrap_servers(bootstrap_server)
        try:
            addresses = addresses_of(servers)
        except ValueError as problem:
            raise ClusterError(f"--bootstrap-server: {problem}") from None
        name = ",".join(f"{host}:{port}" for host, port in sorted(addresses))
        return CommandedCluster(fault_command, brokers_of(addresses), name)
    if project is not None:
        from tools.faults.containers import find_cluster

        return find_cluster(project)
    if directory is None:
        return None
    from tools.cluster.local_cluster import LocalCluster
    from tools.faults.processes import ProcessCluster

    local = LocalCluster(directory)
    if not local.exists():
        raise ClusterError(f"{directory} has no cluster; see `ottla cluster start`")
    return ProcessCluster(local)


def session_s(cluster: Cluster) -> float:
    """The brokers' session time-out in seconds: a local cluster's own, else a guess."""
    from tools.faults.processes import ProcessCluster

    return cluster.session_s() if isinstance(cluster, ProcessCluster) else SESSION_DEFAULT_S


def who_does_not_serve(cluster: Cluster, timeout_s: float) -> str:
    """Waits until all brokers serve. After `timeout_s`, names one that does not and why; otherwise returns an empty text."""
    addresses = {broker: cluster.address(broker) for broker in cluster.broker_ids}
    deadline = time.monotonic() + timeout_s
    while reasons := not_ready(addresses, addresses, ANSWER_TIMEOUT_S, cluster.security):
        if time.monotonic() > deadline:
            broker, reason = next(iter(reasons.items()))
            return f"broker {broker} {reason}"
        time.sleep(POLL_S)
    return ""
