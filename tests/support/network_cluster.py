"""A cluster whose brokers have a network namespace each, so that single links can be cut (FLT-9..15). Needs root, `ip` and `iptables`.

      netns of broker 1: 198.18.n.1 --+
      netns of broker 2: 198.18.n.2 --+-- bridge: 198.18.n.253 ZooKeeper, 198.18.n.254 the test's clients
      netns of broker 3: 198.18.n.3 --+

A cut drops packets, as a broken cable does: nobody is told.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.invariants import ZooKeeperView
from tools.cluster.links.rules import ZOOKEEPER
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.run_directory import BrokerDirectory
from tools.faults.packets import Host, iptables
from tools.faults.words import parse_words

CLIENT_PORT = 9092
CONTROL_PORT = 9192
ZOOKEEPER_PORT = 2181
ZOOKEEPER_HOST = 253
CLIENTS_HOST = 254
_NUMBERS = itertools.count()
SOURCE_ROOT = Path(__file__).resolve().parents[2]


def why_not() -> str | None:
    """The reason why this machine cannot have such a cluster, None when it can."""
    if os.geteuid() != 0:
        return "network faults need root"
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            return f"network faults need the program {program}"
    name = f"ottla-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    try:
        rules = subprocess.run(
            ["ip", "netns", "exec", name, "iptables", "-L"], capture_output=True, text=True, check=False
        )
        return f"no iptables here: {rules.stderr.strip()}" if rules.returncode != 0 else None
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class NetworkCluster(LocalCluster):
    """`create` and `start` as LocalCluster's; `destroy` removes the network too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # Each has other addresses: what was at one a moment ago is still in somebody's table of neighbours, and a run that
        # was killed has left its network behind.
        used = _run("ip", "-o", "addr")
        numbers = ((os.getpid() * 16 + count) % 512 for count in _NUMBERS)
        number = next(number for number in numbers if f" {_prefix(number)}." not in used)
        self._prefix = _prefix(number)
        self._bridge = f"ot{os.getpid() % 100000}b{number}"
        self._spaces: list[str] = []
        self._forwarding = ["FORWARD", "-i", self._bridge, "-o", self._bridge, "-j", "ACCEPT"]

    def host(self, broker: int) -> str:
        return f"{self._prefix}.{broker}"

    def create(
        self,
        brokers: int = 3,
        zookeeper: str | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        links: bool = False,
    ) -> None:
        assert not links, "the cuts are in the network here"
        super().create(brokers, zookeeper, overrides)
        self._make_network(brokers)
        zoo_cfg = self.directory / "zookeeper" / "zoo.cfg"
        lines = [
            {
                "clientPortAddress": f"clientPortAddress={self._prefix}.{ZOOKEEPER_HOST}",
                "clientPort": f"clientPort={ZOOKEEPER_PORT}",
            }.get(line.partition("=")[0], line)
            for line in zoo_cfg.read_text().splitlines()
        ]
        zoo_cfg.write_text("\n".join(lines) + "\n")
        for broker in self.broker_ids:
            file = self.broker_directory(broker) / "server.properties"
            host = self.host(broker)
            changed = {
                "listeners": f"PLAINTEXT://{host}:{CLIENT_PORT},CONTROLLER://{host}:{CONTROL_PORT}",
                "zookeeper.connect": f"{self._prefix}.{ZOOKEEPER_HOST}:{ZOOKEEPER_PORT}",
            }
            kept = [line for line in file.read_text().splitlines() if line.partition("=")[0] not in changed]
            file.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in changed.items())]) + "\n")

    def destroy(self) -> None:
        super().destroy()
        for space in self._spaces:
            # Removed here, since the namespace stays for a moment.
            subprocess.run(["ip", "link", "del", space.replace("n", "o")], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["iptables", "-w", "-D", *self._forwarding], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        self._spaces.clear()

    # -- links ----------------------------------------------------------------------------------------------------

    def cut(self, broker: int, words: str) -> None:
        """Breaks links of the broker, in the words of `ottla fault cut`: `from broker:3 one-way in`, `from zookeeper`, ..."""
        breakage = parse_words(f"cut broker {broker} {words}").breakage
        assert breakage is not None
        hosts = {str(each): Host(self.host(each), CONTROL_PORT) for each in self.broker_ids}
        hosts[ZOOKEEPER] = Host(f"{self._prefix}.{ZOOKEEPER_HOST}")
        for rule in breakage.rules(broker, self.broker_ids):
            for match in iptables(rule, hosts):
                self._iptables(broker, "-A", *match)

    def reset_control(self, broker: int, sender: int) -> None:
        """The broker's control listener refuses the sender, by a firewall's word: what was connected is reset."""
        self._iptables(
            broker,
            *("-A", "INPUT", "-s", self.host(sender), "-p", "tcp", "--dport", str(CONTROL_PORT)),
            *("-j", "REJECT", "--reject-with", "tcp-reset"),
        )

    def heal(self, *brokers: int) -> None:
        """All links of these brokers (default: of all) work again."""
        for broker in brokers or self.broker_ids:
            for chain in ("INPUT", "OUTPUT"):
                self._iptables(broker, "-F", chain)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _make_network(self, brokers: int) -> None:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        # The first address is the one that the clients' connections come from.
        for host in (CLIENTS_HOST, ZOOKEEPER_HOST):
            _run("ip", "addr", "add", f"{self._prefix}.{host}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        # A Docker engine, also one that has ended, leaves a machine that forwards nothing between others.
        _run("iptables", "-w", "-I", *self._forwarding)
        for broker in range(1, brokers + 1):
            space, inside, outside = (f"{self._bridge}{letter}{broker}" for letter in ("n", "i", "o"))
            _run("ip", "netns", "add", space)
            self._spaces.append(space)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
            _run("ip", "link", "set", outside, "master", self._bridge, "up")
            for command in (
                ("addr", "add", f"{self.host(broker)}/24", "dev", inside),
                ("link", "set", inside, "up"),
                ("link", "set", "lo", "up"),
            ):
                _run("ip", "-n", space, *command)

    def _iptables(self, broker: int, *arguments: str) -> None:
        _run("ip", "netns", "exec", self._spaces[broker - 1], "iptables", "-w", *arguments)

    def _spawn(self, broker: BrokerDirectory) -> None:
        # `ip netns exec` becomes the broker: its pid is the broker's.
        space = ["ip", "netns", "exec", self._spaces[broker.id - 1]]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
        command = [sys.executable, "-m", "broker", "--config", str(broker.config_file)]
        self._process(broker.id).start([*space, *command], environment)


@contextmanager
def running_network(directory: Path, settings: Mapping[str, str]) -> Iterator[tuple[NetworkCluster, ZooKeeperView]]:
    """Three brokers with these settings, destroyed at the end."""
    cluster = NetworkCluster(directory)
    try:
        cluster.create(overrides=settings)
        cluster.start()
        with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
            yield cluster, zk
    finally:
        cluster.destroy()


def _prefix(number: int) -> str:
    """Of the addresses of a network, 0 to 511. RFC 2544: for tests of networks."""
    return f"198.{18 + number // 256}.{number % 256}"


def _run(*command: str) -> str:
    """What it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
