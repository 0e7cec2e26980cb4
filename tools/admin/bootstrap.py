"""Finds the brokers' addresses: by `--bootstrap-server` or `--dir`, else by the environment variable, else in `./ottla-cluster`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.failures import ExpectedError

BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP_SERVER"
DEFAULT_RUN_DIRECTORY = Path("ottla-cluster")
DEFAULT_PORT, PORT_MAX = "9092", 65_535
PROBE_TIMEOUT_S = 0.5
DEFAULT_CONTROL_PLANE_LISTENER = "CONTROLLER"


class NoBootstrapServer(ExpectedError, ValueError):
    """No cluster is named anywhere, or its files cannot be read; the message says what to do."""


def find_bootstrap_servers(
    given: str | None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    default_directory: Path = DEFAULT_RUN_DIRECTORY,
    protocol: str | None = None,
) -> str:
    """`host:port[,host:port...]` from the first source that is given: the address, the run directory, the environment variable.

    Without any, the default directory. `protocol`: the security protocol of the client, if brokers of a run directory have several
    listeners. Raises NoBootstrapServer, also for an address that is none.
    """
    if given:
        return checked(given, "--bootstrap-server")
    if directory is not None:
        endpoints = run_directory_endpoints(directory, protocol)
        if not endpoints:
            raise NoBootstrapServer(f"there is no cluster in {directory}: `ottla cluster start --dir {directory}`")
        return ",".join(endpoints)
    variables = os.environ if environment is None else environment
    if named := variables.get(BOOTSTRAP_VARIABLE):
        return checked(named, BOOTSTRAP_VARIABLE)
    servers = ",".join(run_directory_endpoints(default_directory, protocol))
    if not servers:
        raise NoBootstrapServer(
            f"no cluster given: use --bootstrap-server host:port or --dir, set {BOOTSTRAP_VARIABLE}, "
            f"or start one here with `ottla cluster start` (there is none in ./{default_directory})"
        )
    return servers


def checked(servers: str, source: str) -> str:
    """`servers`, if they are addresses. `source` is where they come from. Raises NoBootstrapServer."""
    try:
        addresses_of(servers)
    except ValueError as problem:
        raise NoBootstrapServer(f"{source}: {problem}") from None
    return servers


def is_named_by_variable() -> bool:
    """Whether the environment variable names the cluster of commands without an option that does."""
    return bool(os.environ.get(BOOTSTRAP_VARIABLE))


def addresses_of(bootstrap_servers: str) -> tuple[tuple[str, int], ...]:
    """The addresses of `host:port,host:port`, with Kafka's port for a host without one. Raises ValueError for anything else."""
    found = []
    for server in map(str.strip, bootstrap_servers.split(",")):
        host, _, port = server.rpartition(":") if ":" in server else (server, "", DEFAULT_PORT)
        if not host or not host.isprintable() or not is_plain_number(port) or int(port) > PORT_MAX:
            raise ValueError(f"{server!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


def resolves(host: str) -> bool:
    """Whether the host name has an address."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _accepts(host: str, port: int) -> bool:
    """Whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), PROBE_TIMEOUT_S).close()
    except (OSError, UnicodeError):
        return False
    return True


def no_answer(bootstrap_servers: str, tried_s: float = 0) -> str:
    """The error for addresses where no broker answers."""
    for host, _ in addresses_of(bootstrap_servers):
        if not resolves(host):
            return f"no broker answers at {bootstrap_servers}: the host name {host} does not resolve; check the address"
    within = f" within {tried_s:.0f} s" if tried_s >= 1 else ""
    if any(_accepts(host, port) for host, port in addresses_of(bootstrap_servers)):
        return (
            f"no broker answers at {bootstrap_servers}{within}, but connections are accepted. Either --command-config does not fit the "
            "listener (TLS, certificate, password): the broker's server.log says what it refuses. Or the broker is paused"
        )
    return f"no broker answers at {bootstrap_servers}{within}; check the address and that the cluster runs (`ottla cluster status`)"


def run_directory_endpoints(run_directory: Path, protocol: str | None = None) -> list[str]:
    """`host:port` of each broker of a run directory (RUN-1) that has a listener for clients, in the order of broker ids.

    Of its first listener with that security protocol, else of its first one. Raises NoBootstrapServer.
    """
    files = sorted(run_directory.glob("broker-*/server.properties"), key=lambda path: (len(path.parent.name), path))
    found = []
    for path in files:
        properties = read_properties(path)
        listeners = client_listeners(properties)
        fitting = (listeners[name] for name in listeners if protocol_of(name, properties) == protocol)
        endpoint = next(fitting, None) or next(iter(listeners.values()), None)
        if endpoint is not None:
            found.append(endpoint)
    return found


def run_directory_brokers(run_directory: Path) -> frozenset[int]:
    """The ids of the brokers of a run directory. Raises NoBootstrapServer."""
    files = run_directory.glob("broker-*/server.properties")
    ids = [read_properties(path).get("broker.id", "") for path in files]
    return frozenset(int(broker) for broker in ids if broker.isdecimal())


def client_listeners(properties: Mapping[str, str]) -> dict[str, str]:
    """The listeners for clients, as name -> `host:port`: the advertised ones, else all. Not the control plane's, nor those with port 0.

    The inter-broker listener is only for brokers if there is another one.
    """
    control_plane = properties.get("control.plane.listener.name", DEFAULT_CONTROL_PLANE_LISTENER)
    listeners = properties.get("advertised.listeners") or properties.get("listeners", "")
    found = {}
    for listener in listeners.split(","):
        name, separator, address = listener.strip().partition("://")
        if separator and name != control_plane and not address.endswith(":0"):
            found[name] = address if not address.startswith(":") else f"localhost{address}"
    if len(found) > 1:
        found.pop(properties.get("inter.broker.listener.name", ""), None)
    return found


def protocol_of(listener: str, properties: Mapping[str, str]) -> str:
    """The security protocol of a listener."""
    for entry in properties.get("listener.security.protocol.map", "").split(","):
        name, _, protocol = entry.strip().partition(":")
        if name.upper() == listener.upper():
            return protocol.strip().upper()
    return listener.upper()


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a broker's file. Raises NoBootstrapServer."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoBootstrapServer(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise NoBootstrapServer(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None


def parse_properties(text: str) -> dict[str, str]:
    """The `key=value` lines of a properties file; comments and lines without a separator are skipped."""
    return dict(_property_lines(text))


def _property_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            yield key.strip(), value.strip()
