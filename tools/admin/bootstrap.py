"""Finds the brokers' addresses: by `--bootstrap-server` or `--dir`, else by the environment variable, else in `./ottla-cluster`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.failures import ExpectedError

BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP_SERVER"
DEFAULT_RUN_DIRECTORY = Path("ottla-cluster")
DEFAULT_CONTROL_PLANE_LISTENER = "CONTROLLER"


class NoBootstrapServer(ExpectedError, ValueError):
    """No cluster is named anywhere; the message says what to do."""


def find_bootstrap_servers(
    given: str | None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    default_directory: Path = DEFAULT_RUN_DIRECTORY,
) -> str:
    """`host:port[,host:port...]` from the first source that is given: the address, the run directory, the environment variable.

    Without any, the default directory. Raises NoBootstrapServer.
    """
    if given:
        return given
    if directory is not None:
        endpoints = run_directory_endpoints(directory)
        if not endpoints:
            raise NoBootstrapServer(f"there is no cluster in {directory}: `ottla cluster start --dir {directory}`")
        return ",".join(endpoints)
    variables = os.environ if environment is None else environment
    servers = variables.get(BOOTSTRAP_VARIABLE) or ",".join(run_directory_endpoints(default_directory))
    if not servers:
        raise NoBootstrapServer(
            f"no cluster given: use --bootstrap-server host:port or --dir, set {BOOTSTRAP_VARIABLE}, "
            f"or start one here with `ottla cluster start` (there is none in ./{default_directory})"
        )
    return servers


def is_named_by_variable() -> bool:
    """Whether the environment variable names the cluster of commands without an option that does."""
    return bool(os.environ.get(BOOTSTRAP_VARIABLE))


def addresses_of(bootstrap_servers: str) -> tuple[tuple[str, int], ...]:
    """The addresses of `host:port,host:port`. Raises ValueError for anything else."""
    found = []
    for server in bootstrap_servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise ValueError(f"{server.strip()!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


def run_directory_endpoints(run_directory: Path) -> list[str]:
    """The client endpoints `host:port` of the brokers of a run directory (RUN-1), in the order of broker ids."""
    files = sorted(run_directory.glob("broker-*/server.properties"), key=lambda path: (len(path.parent.name), path))
    return [endpoint for path in files for endpoint in client_endpoints(parse_properties(path.read_text()))]


def run_directory_brokers(run_directory: Path) -> frozenset[int]:
    """The ids of the brokers of a run directory."""
    files = run_directory.glob("broker-*/server.properties")
    ids = [parse_properties(path.read_text()).get("broker.id", "") for path in files]
    return frozenset(int(broker) for broker in ids if broker.isdecimal())


def client_endpoints(properties: Mapping[str, str]) -> list[str]:
    """The addresses for clients: the advertised listeners, else the listeners. Skips the control plane's, and those with port 0.

    The inter-broker listener is only for brokers if there is another one.
    """
    control_plane = properties.get("control.plane.listener.name", DEFAULT_CONTROL_PLANE_LISTENER)
    listeners = properties.get("advertised.listeners") or properties.get("listeners", "")
    endpoints = {}
    for listener in listeners.split(","):
        name, separator, address = listener.strip().partition("://")
        if separator and name != control_plane and not address.endswith(":0"):
            endpoints[name] = address if not address.startswith(":") else f"localhost{address}"
    if len(endpoints) > 1:
        endpoints.pop(properties.get("inter.broker.listener.name", ""), None)
    return list(endpoints.values())


def parse_properties(text: str) -> dict[str, str]:
    """The `key=value` lines of a properties file; comments and lines without a separator are skipped."""
    return dict(_property_lines(text))


def _property_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            yield key.strip(), value.strip()
