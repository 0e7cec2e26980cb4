"""The cluster that faults hit, from the options that name one: `--dir`, `--compose` or `--fault-command`."""

from __future__ import annotations

from pathlib import Path

import click

from tools.cluster.processes import ClusterError
from tools.faults.cluster import Cluster


def find_target(
    directory: Path | None, project: str | None, fault_command: str | None, bootstrap_server: str | None
) -> Cluster | None:
    """None without an option that names one. Raises ClusterError, NoBootstrapServer, UsageError."""
    if sum(option is not None for option in (directory, project, fault_command)) > 1:
        raise click.UsageError("--dir, --compose and --fault-command name a cluster each; give one of them")
    # Imported late: each needs libraries that the others do not.
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
