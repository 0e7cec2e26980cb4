"""How a command names its cluster: the same options for all commands, each defined here once.

`--bootstrap-server` or `--dir`, of which a command takes one; else $OTTLA_BOOTSTRAP_SERVER; else the cluster in `./ottla-cluster`.
Commands that need more than addresses (processes, event logs, containers) take no address from the variable, and may have
`--compose` and `--fault-command` as well.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tools.admin.bootstrap import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_RUN_DIRECTORY,
    NoBootstrapServer,
    find_bootstrap_servers,
    is_named_by_variable,
    run_directory_brokers,
)
from tools.failures import NoClusterNamed
from tools.numbers import DIRECTORY, FILE
from tools.properties_file import BadProperties, read_properties

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

CLIENT_PROPERTIES = "client.properties"
"""The file in a run directory that says how its commands connect: what `--command-config` is for other clusters."""
CONFIG_VARIABLE = "OTTLA_COMMAND_CONFIG"
"""The environment variable that is the same for clusters that an address names."""
LOCAL_DEFAULT = f"[default: {DEFAULT_RUN_DIRECTORY}]"


def directory_option(
    says: str = f"the run directory of a local cluster  {LOCAL_DEFAULT}", default: Path | None = None
) -> Decorator[Any]:
    """`--dir`; the command gets it as `directory`, `default` if it is not given."""
    return click.option(
        "--dir",
        "directory",
        type=DIRECTORY,
        metavar="DIR",
        default=default,
        show_default=default is not None,
        help=says,
    )


def bootstrap_option(says: str = f"brokers of the cluster  [default: ${BOOTSTRAP_VARIABLE}]") -> Decorator[Any]:
    """`--bootstrap-server`."""
    return click.option("--bootstrap-server", metavar="HOST:PORT[,HOST:PORT...]", help=says)


def zookeeper_option(says: str) -> Decorator[Any]:
    """`--zookeeper`."""
    return click.option("--zookeeper", metavar="HOST:PORT[,HOST:PORT...][/CHROOT]", help=says)


def zookeeper_tls_option(
    says: str = "file with zookeeper.ssl.* settings, for --zookeeper; the cluster in --dir needs none",
) -> Decorator[Any]:
    """`--zk-tls-config-file`, as Kafka's tools have it; the command gets it as `zk_tls_config`."""
    return click.option("--zk-tls-config-file", "zk_tls_config", type=FILE, metavar="FILE", help=says)


def compose_option(says: str = "a Compose project: its name, or the directory of its file") -> Decorator[Any]:
    """`--compose`; the command gets it as `project`."""
    return click.option("--compose", "project", metavar="PROJECT", help=says)


def fault_command_option(
    says: str = "run this program for each fault: PROGRAM ACTION ID HOST PORT",
) -> Decorator[Any]:
    """`--fault-command`."""
    return click.option("--fault-command", metavar="PROGRAM", help=says)


def command_config_option(
    says: str = f"file with client settings (TLS, SASL)  [default: {CLIENT_PROPERTIES} in --dir, else ${CONFIG_VARIABLE}]",
) -> Decorator[Any]:
    """`--command-config`."""
    return click.option("--command-config", type=FILE, metavar="FILE", help=says)


def default_config(directory: Path | None) -> Path | None:
    """The properties file of the run directory that names the cluster; without one, that of the environment variable; None without any."""
    if directory is not None:
        return client_properties_of(directory)
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def client_properties_of(directory: Path | None) -> Path | None:
    """The properties file of a run directory; None if it has none."""
    file = None if directory is None else directory / CLIENT_PROPERTIES
    return file if file is not None and file.is_file() else None


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster that a command is for, as its options name it. `given_config`: the properties file that says how to connect."""

    bootstrap_server: str | None = None
    directory: Path | None = None
    given_config: Path | None = None

    @property
    def command_config(self) -> Path | None:
        """The properties file that is given; else the one of the run directory, or that of the variable if an address names the cluster."""
        return self.given_config or default_config(self.run_directory())

    def servers(self) -> str:
        """`host:port[,host:port...]`, of the listener that fits `given_config`. Raises NoClusterNamed."""
        protocol = None if self.given_config is None else _protocol(self.given_config)
        try:
            return find_bootstrap_servers(self.bootstrap_server, self.directory, protocol=protocol)
        except NoBootstrapServer as problem:
            raise NoClusterNamed(str(problem)) from None

    def run_directory(self) -> Path | None:
        """The run directory that names the cluster; None if an address does."""
        if self.bootstrap_server:
            return None
        if self.directory is not None:
            return self.directory
        return None if is_named_by_variable() else DEFAULT_RUN_DIRECTORY

    def expected_brokers(self) -> frozenset[int]:
        """The ids of the brokers that belong to the cluster, as far as a run directory says so."""
        directory = self.run_directory()
        return frozenset() if directory is None else run_directory_brokers(directory)


def _protocol(command_config: Path) -> str | None:
    """The `security.protocol` in the file, in capitals. None: it has none, or cannot be read, of which the client says more."""
    try:
        properties = read_properties(command_config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadProperties):
        return None
    return next((value.upper() for key, value, _ in properties if key == "security.protocol"), None)


def server_options(command: Command) -> Command:
    """`--bootstrap-server`, `--dir` and `--command-config`; the command gets them as `where`."""

    @functools.wraps(command)
    def with_where(
        *arguments: Any,
        bootstrap_server: str | None,
        directory: Path | None,
        command_config: Path | None,
        **options: Any,
    ) -> Any:
        if bootstrap_server is not None and directory is not None:
            raise click.UsageError("--bootstrap-server and --dir name a cluster each; give one of them")
        return command(*arguments, where=Where(bootstrap_server, directory, command_config), **options)

    options = (
        bootstrap_option(),
        directory_option(
            f"the local cluster in this run directory  [default: {DEFAULT_RUN_DIRECTORY}, without ${BOOTSTRAP_VARIABLE}]"
        ),
        command_config_option(),
    )
    decorated: Any = with_where
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
