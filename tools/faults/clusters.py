"""The cluster that faults hit: in a run directory, in a Compose project, or any other with a program of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.cluster.processes import ClusterError
from tools.faults.cluster import Cluster

ONE_OF_THEM = "--dir, --compose and --fault-command name a cluster each; give one of them"


def cluster_of(
    directory: Path | None, project: str | None, fault_command: str | None, bootstrap: Sequence[tuple[str, int]]
) -> Cluster | None:
    """None without a name. `bootstrap` is for `fault_command` only. Raises ClusterError."""
    # Imported late: each needs libraries that the others do not.
    if fault_command is not None:
        from tools.faults.commanded import CommandedCluster, brokers_of

        name = ",".join(f"{host}:{port}" for host, port in sorted(bootstrap))
        return CommandedCluster(fault_command, brokers_of(bootstrap), name)
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
