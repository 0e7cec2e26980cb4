"""Cuts containers off: from their networks through `docker network`, from single peers through iptables, as root (FLT-34).

The rules are in two chains of our own inside the container's network namespace, so that a heal finds them whoever made them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cluster.links.rules import Rule
from tools.cluster.processes import ClusterError
from tools.faults.docker_command import docker, inspect, run, save
from tools.faults.packets import Host, iptables
from tools.faults.words import FaultError

CHAINS = {"INPUT": "ottla-fault-in", "OUTPUT": "ottla-fault-out"}
NOT_ROOT = (
    "only root can cut single links of a container (nsenter, iptables): run this as root, "
    "or `isolate` the broker from everything, which needs Docker only"
)


def disconnect(container: str, saved: Path) -> None:
    """Takes the container out of its networks, and writes down how it was connected. Raises ClusterError."""
    found = inspect(container)
    networks = found["NetworkSettings"]["Networks"]
    if not networks:
        return  # it is disconnected already
    rows = [
        {
            "network": name,
            "aliases": [alias for alias in network.get("Aliases") or () if not found["Id"].startswith(alias)],
            "address": (network.get("IPAMConfig") or {}).get("IPv4Address") or network.get("IPAddress") or "",
        }
        for name, network in networks.items()
    ]
    save(saved, json.dumps(rows))
    for row in rows:
        docker("network", "disconnect", row["network"], container)


def reconnect(container: str, saved: Path) -> None:
    """Undoes `disconnect`: the same networks, aliases and addresses. Raises ClusterError."""
    try:
        rows = json.loads(saved.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as problem:
        raise ClusterError(
            f"{saved} cannot be read: {problem}; `docker network connect` connects {container}"
        ) from None
    connected = inspect(container)["NetworkSettings"]["Networks"]
    for row in rows:
        if row["network"] in connected:
            continue
        aliases = [word for alias in row["aliases"] for word in ("--alias", alias)]
        try:
            address = ["--ip", row["address"]] if row["address"] else []
            docker("network", "connect", *aliases, *address, row["network"], container)
        except ClusterError as problem:
            # Docker gives a fixed address only in a network with a configured subnet; the aliases are what brokers use.
            if not row["address"] or "subnet" not in str(problem):
                raise
            docker("network", "connect", *aliases, row["network"], container)
    saved.unlink(missing_ok=True)


def add_rules(container: str, rules: Sequence[Rule], hosts: Mapping[str, Host]) -> None:
    """Raises ClusterError, FaultError."""
    found = _packet_rules(rules, hosts)
    inside = _Inside(container)
    for chain, own in CHAINS.items():
        if not inside.has(own):
            inside.iptables("-N", own)
            inside.iptables("-I", chain, "-j", own)
    for chain, *match in found:
        inside.iptables("-A", CHAINS[chain], *match)


def remove_rules(container: str, rules: Sequence[Rule], hosts: Mapping[str, Host]) -> None:
    """Raises ClusterError, FaultError."""
    inside = _Inside(container)
    for chain, *match in _packet_rules(rules, hosts):
        inside.iptables("-D", CHAINS[chain], *match)


def remove_all_rules(container: str) -> None:
    """Does nothing without root or iptables: then this program has made no rules. Raises ClusterError."""
    if os.geteuid() != 0 or shutil.which("iptables") is None or not inspect(container)["State"]["Running"]:
        return
    inside = _Inside(container)
    for own in CHAINS.values():
        if inside.has(own):
            inside.iptables("-F", own)


class _Inside:
    """The network namespace of a running container."""

    def __init__(self, container: str) -> None:
        """Raises ClusterError."""
        if os.geteuid() != 0:
            raise ClusterError(NOT_ROOT)
        pid = inspect(container)["State"]["Pid"]
        if not pid:
            raise ClusterError(f"{container} does not run, so it has no links")
        self._enter = ["nsenter", "--target", str(pid), "--net", "iptables", "-w"]

    def iptables(self, *arguments: str) -> str:
        return run([*self._enter, *arguments], "iptables", "the command nsenter was not found: install util-linux")

    def has(self, chain: str) -> bool:
        try:
            self.iptables("-n", "-L", chain)
        except ClusterError as problem:
            if "No chain" not in str(problem) and "chain" not in str(problem):
                raise
            return False
        return True


def _packet_rules(rules: Sequence[Rule], hosts: Mapping[str, Host]) -> list[tuple[str, ...]]:
    for rule in rules:
        missing = sorted(rule.others - set(hosts))
        if missing:
            raise FaultError(f"{', '.join(missing)} has no address now, so its link cannot be cut")
    return [found for rule in rules for found in iptables(rule, hosts)]
