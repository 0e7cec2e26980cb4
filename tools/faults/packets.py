"""Turns rules for links into arguments of iptables, for the network namespace of each rule's node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.cluster.links.rules import Effect, Rule
from tools.faults.words import FaultError

DROP_OR_RESET = "packets can be dropped or reset here; delay, throttle and half need `ottla cluster start --links`"
CUT, RESET = Effect(is_cut=True), Effect(resets=True)


@dataclass(frozen=True, slots=True)
class Host:
    """The source of a node's packets. `control_port`: the port of its control-plane listener; None for ZooKeeper, or if unknown."""

    address: str
    control_port: int | None = None


def iptables(rule: Rule, hosts: Mapping[str, Host]) -> list[tuple[str, ...]]:
    """Chain and match of each rule, as they follow `-A` or `-D`. `hosts`: node -> host. Raises FaultError."""
    if rule.effect not in (CUT, RESET):
        raise FaultError(DROP_OR_RESET)
    verdict = ("-j", "DROP") if rule.effect == CUT else ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
    found = []
    for other in sorted(rule.others):
        for chain, side, direction in (("INPUT", "-s", "in"), ("OUTPUT", "-d", "out")):
            if rule.direction in ("both", direction):
                peer = (chain, side, hosts[other].address)
                found += [(*peer, *ports, *verdict) for ports in _ports(rule, hosts, other, direction)]
    return found


def _ports(rule: Rule, hosts: Mapping[str, Host], other: str, direction: str) -> list[tuple[str, ...]]:
    if not rule.only_control:
        return [()]
    mine, theirs = hosts[rule.of].control_port, hosts[other].control_port
    if mine is None or theirs is None:
        raise FaultError("the control plane has no port of its own here, so it cannot be cut alone")
    own, far = ("--dport", "--sport") if direction == "in" else ("--sport", "--dport")
    return [("-p", "tcp", own, str(mine)), ("-p", "tcp", far, str(theirs))]
