"""The files of the links in a run directory: `DIR/links/{links.json,server.log,pid,control}`.

`links.json` says which port leads to what. Each broker has a port of its own for ZooKeeper, so its links to ZooKeeper need no search for
who connected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.cluster.links.rules import CONTROL, DATA, SESSIONS, ZOOKEEPER
from tools.private_files import write_anew

MARKER = "tools.cluster.links"


class BadWiring(ValueError):
    """`links.json` cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of 127.0.0.1 that leads to `target` at the first of `addresses` (`host:port`) that answers.

    `source`: who connects there; None if every broker does.
    """

    port: int
    target: str
    plane: str
    addresses: tuple[str, ...]
    source: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The ports that a broker has because of the links: two that it listens on, and three of the links."""

    internal: int
    control: int
    link_internal: int
    link_control: int
    link_zookeeper: int


class LinksDirectory:
    """`DIR/links`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "links.json"
        self.control_socket = path / "control"

    def exists(self) -> bool:
        return self.config_file.exists()

    def create(self, host: str, zookeeper: str, brokers: Mapping[int, BrokerPorts]) -> None:
        """Writes `links.json`. `zookeeper`: where the real one is, `host:port,...[/chroot]`."""
        addresses, _, _ = zookeeper.partition("/")
        ensemble = tuple(address.strip() for address in addresses.split(","))
        ports = []
        for broker, has in brokers.items():
            name = str(broker)
            ports += [
                Port(has.link_internal, name, DATA, (f"{host}:{has.internal}",)),
                Port(has.link_control, name, CONTROL, (f"{host}:{has.control}",)),
                Port(has.link_zookeeper, ZOOKEEPER, SESSIONS, ensemble, source=name),
            ]
        self.path.mkdir(parents=True)
        rows = [asdict(port) for port in ports]
        write_anew(self.config_file, json.dumps({"zookeeper": zookeeper, "ports": rows}, indent=1) + "\n")

    @property
    def zookeeper_connect(self) -> str:
        """`zookeeper.connect` for those who do not go through the links. Raises BadWiring."""
        return str(self._read()["zookeeper"])

    def ports(self) -> Sequence[Port]:
        """Raises BadWiring."""
        try:
            return [
                Port(row["port"], row["target"], row["plane"], tuple(row["addresses"]), row["source"])
                for row in self._read()["ports"]
            ]
        except (KeyError, TypeError) as problem:
            raise BadWiring(
                f"{self.config_file}: a port is not as `ottla cluster start` writes it: {problem}"
            ) from None

    def _read(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self.config_file.read_text())
        except OSError as problem:
            raise BadWiring(f"{self.config_file} cannot be read: {problem.strerror}") from None
        except ValueError as problem:
            raise BadWiring(f"{self.config_file} is not JSON: {problem}") from None
        if not isinstance(found, dict) or not {"zookeeper", "ports"} <= set(found):
            raise BadWiring(f"{self.config_file}: expected an object with zookeeper and ports")
        return found
