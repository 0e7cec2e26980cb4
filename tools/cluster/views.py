"""A cluster as tables and JSON."""

from __future__ import annotations

from typing import Any

from tools.cluster.links.control import NoLinks
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.tables import aligned


def cluster_json(cluster: LocalCluster) -> dict[str, Any]:
    """`{directory, bootstrap_servers, zookeeper_connect, security, controller, nodes}`, with nodes as
    `[{name, id, address, metrics, pid, state, reason, directory}]`.

    `state` is running, paused, stopped, or not ready with a reason; `id` is None for ZooKeeper and the links. `metrics` is
    `host:port` of the metrics page, or None. `security` is the directory of the settings for clients of a secured cluster, or None.
    """
    nodes: list[dict[str, Any]] = []
    zookeeper = cluster.zookeeper
    if zookeeper is not None:
        pid = zookeeper.pid()
        nodes.append(
            {
                "name": "zookeeper",
                "id": None,
                "address": cluster.zookeeper_connect,
                "metrics": None,
                "pid": pid,
                "state": "stopped" if pid is None else "paused" if zookeeper.is_paused() else "running",
                "reason": None,
                "directory": str(zookeeper.directory),
            }
        )
    links = cluster.links_process
    if links is not None:
        pid = links.pid()
        nodes.append(
            {
                "name": "links",
                "id": None,
                "address": _broken_links(cluster),
                "metrics": None,
                "pid": pid,
                "state": "stopped" if pid is None else "paused" if links.is_paused() else "running",
                "reason": None,
                "directory": str(links.directory),
            }
        )
    problems = cluster.problems()
    for broker_id in cluster.broker_ids:
        problem = problems.get(broker_id)
        nodes.append(
            {
                "name": f"broker {broker_id}",
                "id": broker_id,
                "address": cluster.address(broker_id),
                "metrics": cluster.metrics_address(broker_id) or None,
                "pid": cluster.pid(broker_id),
                "state": "running" if problem is None else problem if problem in ("stopped", "paused") else "not ready",
                "reason": None if problem in ("stopped", "paused") else problem,
                "directory": str(cluster.broker_directory(broker_id)),
            }
        )
    return {
        "directory": str(cluster.directory),
        "bootstrap_servers": cluster.bootstrap_servers,
        "zookeeper_connect": cluster.zookeeper_connect,
        "security": str(cluster.secured.path) if cluster.secured is not None else None,
        "controller": cluster.controller_id(),
        "nodes": nodes,
    }


def _broken_links(cluster: LocalCluster) -> str:
    """The number of faults of the links. It is shown in place of an address."""
    try:
        count = len(cluster.links.rules()) if cluster.links is not None else 0
    except NoLinks:
        return "-"
    return "no fault" if not count else "1 fault" if count == 1 else f"{count} faults"


def node_table(view: dict[str, Any], *, with_state: bool) -> list[str]:
    """The nodes of `cluster_json` as aligned columns under a heading."""
    rows = [["NODE", "ADDRESS", "PID", *(["STATE"] if with_state else []), "DIRECTORY"]]
    for node in view["nodes"]:
        state = node["state"] if node["reason"] is None else f"{node['state']}: {node['reason']}"
        if node["id"] == view["controller"] and node["state"] == "running":
            state += ", controller"
        rows.append(
            [
                node["name"],
                node["address"],
                str(node["pid"] or "-"),
                *([state] if with_state else []),
                node["directory"],
            ]
        )
    return aligned(rows)
