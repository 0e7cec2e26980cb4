"""`ottla cluster ...` and `ottla broker`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from protocol.kafka.api_keys import ApiLevel
from protocol.numbers import is_plain_number
from tools.admin import naming
from tools.admin.connection import format_option
from tools.admin.naming import Where, server_options, zookeeper_tls_option
from tools.cluster.health_commands import health, remote_status
from tools.cluster.local_cluster import DEFAULT_DIRECTORY, ClusterError, LocalCluster, NotServing
from tools.cluster.ports import LOCAL_HOST
from tools.cluster.run_directory import ClientListener
from tools.cluster.secured.files import ADMIN, USERS
from tools.cluster.views import cluster_json, node_table
from tools.cluster.zookeeper_place import settings_for_brokers
from tools.failures import errors_in_one_line
from tools.interrupts import termination_as_interrupt
from tools.numbers import PATH, IntRange
from tools.terminal import echo, echo_lines

API_LEVEL = "broker.api.level"
BROKERS_DEFAULT = 3
WATCH_S = 0.5
SIGNALS = sorted(number.name.removeprefix("SIG") for number in signal.Signals)


directory_option = naming.directory_option("the cluster's run directory", DEFAULT_DIRECTORY)


@click.group()
def cluster() -> None:
    """Start, inspect, disturb and stop a cluster on this machine."""


cluster.add_command(health)


@cluster.command()
@directory_option
@click.option(
    "--brokers", type=IntRange(1, 1000), help=f"number of brokers of a new cluster  [default: {BROKERS_DEFAULT}]"
)
@click.option(
    "--zookeeper", metavar="HOST:PORT[,HOST:PORT...][/CHROOT]", help="use this ZooKeeper instead of starting one"
)
@zookeeper_tls_option("file with zookeeper.ssl.* settings, for --zookeeper; the brokers get them")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="set a broker setting; may be repeated"
)
@click.option(
    "--as",
    "api_level",
    type=click.Choice([level.value for level in ApiLevel]),
    help="whose APIs clients get: those of Kafka 3.9 or of Kafka 4; sets broker.api.level  [default: 4]",
)
@click.option(
    "--links", is_flag=True, help="connect brokers and ZooKeeper through links that `ottla fault isolate` can cut"
)
@click.option(
    "--secure",
    is_flag=True,
    help="with TLS, users who log in (admin, alice, bob) and ACLs; makes certificates and passwords (docs/SECURITY.md)",
)
@click.option("--port", type=IntRange(1, 64_000), metavar="PORT", help="the first broker's port; the next ones follow")
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="let brokers listen at this address, such as 0.0.0.0; without --secure, there is no authentication",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="tell clients this host  [default: localhost with --listen, for clients on this machine]",
)
@click.option("--foreground", is_flag=True, help="wait for Ctrl-C, then stop the cluster")
@format_option
def start(
    directory: Path,
    brokers: int | None,
    zookeeper: str | None,
    zk_tls_config: Path | None,
    overrides: Sequence[str],
    api_level: str | None,
    links: bool,
    secure: bool,
    port: int | None,
    listen: str | None,
    advertise: str | None,
    foreground: bool,
    output: str,
) -> None:
    """Start a cluster: a new one, or the existing one in the directory, unchanged."""
    if zk_tls_config is not None and zookeeper is None:
        raise click.UsageError("--zk-tls-config-file is for --zookeeper.")
    settings = parse_overrides(overrides)
    if api_level is not None and settings.setdefault(API_LEVEL, api_level) != api_level:
        raise click.UsageError(f"--as {api_level} and --override {API_LEVEL}={settings[API_LEVEL]}: give one of both.")
    local = LocalCluster(directory)
    with errors_in_one_line(), termination_as_interrupt():
        if zk_tls_config is not None:
            settings = {**settings_for_brokers(zk_tls_config), **settings}
        try:
            if not local.exists():
                clients = ClientListener(
                    listen or LOCAL_HOST, advertise or (LOCAL_HOST if listen is None else "localhost"), port
                )
                local.create(
                    brokers or BROKERS_DEFAULT, zookeeper, settings, links=links, clients=clients, secure=secure
                )
            elif (
                any(given is not None for given in (brokers, zookeeper, port, listen, advertise))
                or settings
                or (links and local.links is None)
                or (secure and local.secured is None)
            ):
                raise ClusterError(
                    f"{directory} already has a cluster, which starts unchanged: leave out --brokers, --zookeeper, "
                    "--override, --as, --links, --secure, --port, --listen and --advertise, and edit "
                    f"{directory}/broker-*/server.properties, or use another --dir"
                )
            local.start(say=lambda line: echo(line, err=True))
        except NotServing:
            raise  # its logs are kept
        except BaseException:
            local.undo_create()  # it never served: remove it, so that the next attempt may use other options
            raise
        try:
            for warning in [*local.unknown_settings(), *local.misleading_addresses()]:
                echo(f"Warning: {warning}", err=True)
            echo_lines([json.dumps(cluster_json(local))] if output == "json" else started_lines(local))
            if foreground:
                stay(local)
        except BaseException:
            if foreground:
                stop_and_say(local)
            raise


@cluster.command()
@server_options
@format_option
def status(where: Where, output: str) -> None:
    """Show the nodes of the cluster. The exit code is 1 unless all of them serve.

    For a cluster named by its address, shows the brokers and the under-replicated, offline and moving partitions.
    """
    directory = where.run_directory()
    if directory is None:
        remote_status(where, output)
        return
    local = LocalCluster(directory)
    with errors_in_one_line():
        view = cluster_json(local)
        if output == "json":
            echo(json.dumps(view))
        else:
            echo_lines(node_table(view, with_state=True))
            echo_lines(["", f"bootstrap servers: {view['bootstrap_servers']}", *metrics_lines(view)])
    if any(node["state"] != "running" for node in view["nodes"]):
        sys.exit(1)


@cluster.command()
@directory_option
def stop(directory: Path) -> None:
    """Stop brokers and ZooKeeper; all data is kept."""
    local = LocalCluster(directory)
    with errors_in_one_line():
        if not local.exists():
            raise ClusterError(f"there is no cluster in {directory}")
        if not local.running():
            echo(f"The cluster in {directory} is not running.")
            return
        stop_and_say(local)


@cluster.command()
@directory_option
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
def destroy(directory: Path, yes: bool) -> None:
    """Stop the cluster and remove it with all its data."""
    local = LocalCluster(directory)
    with errors_in_one_line():
        if not local.exists():
            raise ClusterError(f"there is no cluster in {directory}")
        if not yes:
            count = len(local.broker_ids)
            click.confirm(f"Remove the cluster in {directory}, {count} brokers with all their data?", abort=True)
        local.destroy()
        echo(f"Removed the cluster in {directory}.")


@cluster.command("restart-broker")
@click.argument("broker_id", type=IntRange(), metavar="ID")
@directory_option
def restart_broker(broker_id: int, directory: Path) -> None:
    """Stop a broker if it is running, and start it again with its port and data."""
    local = LocalCluster(directory)
    with errors_in_one_line():
        local.restart_broker(broker_id)
        echo(f"Broker {broker_id} serves at {local.address(broker_id)} (pid {local.pid(broker_id)}).")


@cluster.command()
@click.argument("broker_id", type=IntRange(), metavar="ID")
@click.option("--signal", "name", default="KILL", show_default=True, help="the signal's name or number")
@directory_option
def kill(broker_id: int, name: str, directory: Path) -> None:
    """Send a signal to a broker."""
    number = parse_signal(name)
    local = LocalCluster(directory)
    with errors_in_one_line():
        if number is signal.SIGKILL:
            local.kill(broker_id)
        else:
            local.signal(broker_id, number)
        echo(f"Sent {number.name} to broker {broker_id}.")


@cluster.command()
@click.argument("broker_id", type=IntRange(), metavar="ID")
@directory_option
def pause(broker_id: int, directory: Path) -> None:
    """Pause a broker (SIGSTOP)."""
    local = LocalCluster(directory)
    with errors_in_one_line():
        local.pause(broker_id)
        echo(f"Broker {broker_id} is paused; `ottla cluster resume {broker_id}` resumes it.")


@cluster.command()
@click.argument("broker_id", type=IntRange(), metavar="ID")
@directory_option
def resume(broker_id: int, directory: Path) -> None:
    """Resume a paused broker (SIGCONT)."""
    local = LocalCluster(directory)
    with errors_in_one_line():
        local.resume(broker_id)
        echo(f"Broker {broker_id} is running again.")


@cluster.command()
@click.argument("of", metavar="BROKER|USER")
@click.option("--expired", is_flag=True, help="one that has expired, so that clients see how that is refused")
@directory_option
def certificate(of: str, expired: bool, directory: Path) -> None:
    """Give a broker (its id) or a user of a secured cluster a new certificate.

    Returns when the broker uses it, within some seconds. Connections that are open stay.
    """
    from tools.cluster.secured.renewal import renew

    with errors_in_one_line():
        renew(LocalCluster(directory), int(of) if is_plain_number(of) else of, is_expired=expired)
        who = f"broker {of}" if is_plain_number(of) else f"user {of}"
        echo(f"The certificate of {who} {'has expired' if expired else 'is new'}.")


@click.command()
@click.option("--config", "config_file", type=PATH, required=True, help="server.properties")
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="a setting that overrides the file")
def broker(config_file: Path, overrides: Sequence[str]) -> None:
    """Run one broker in the foreground (the same as `python -m broker`)."""
    given = [argument for text in overrides for argument in ("--override", text)]
    # Replaces this program: signals, exit code and output are the broker's own.
    os.execv(sys.executable, [sys.executable, "-m", "broker", "--config", str(config_file), *given])


def parse_overrides(texts: Sequence[str]) -> dict[str, str]:
    """Parses `key=value` texts. Raises click.ClickException."""
    settings = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.ClickException(
                f"--override {text}: expected KEY=VALUE, for example replica.lag.time.max.ms=10000"
            )
        settings[key.strip()] = value.strip()
    return settings


def parse_signal(text: str) -> signal.Signals:
    """Parses `KILL`, `SIGKILL`, `kill` or `9`. Raises click.UsageError."""
    with contextlib.suppress(ValueError):
        if is_plain_number(text):
            return signal.Signals(int(text))
    name = text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise click.UsageError(f"--signal {text}: unknown signal; expected KILL, TERM, STOP, CONT or a number")
    return signal.Signals[f"SIG{name}"]


def started_lines(local: LocalCluster) -> list[str]:
    """Output after a start: the nodes, the address, the next commands."""
    where = "" if local.directory == DEFAULT_DIRECTORY.absolute() else f" --dir {os.path.relpath(local.directory)}"
    view = cluster_json(local)
    return [
        *node_table(view, with_state=False),
        "",
        f"bootstrap servers: {local.bootstrap_servers}",
        *metrics_lines(view),
        *secured_lines(local),
        "",
        f"`ottla cluster status{where}` shows it, `ottla cluster stop{where}` stops it.",
    ]


def secured_lines(local: LocalCluster) -> list[str]:
    """Where the settings of clients are; none for a cluster that is not secured."""
    if local.secured is None:
        return []
    files = Path(os.path.relpath(local.secured.path))
    return [
        "",
        f"Users: {', '.join(USERS)}. How their clients connect, with passwords:",
        f"  Java, ottla --command-config   {files}/<user>/client.properties",
        f"  by certificate                 {files}/<user>/mutual-tls.properties",
        f"  librdkafka, kcat -F            {files}/<user>/librdkafka.properties",
        f"  Python                         {files}/<user>/python.json",
        f"Commands here connect as {ADMIN}, by {os.path.relpath(local.secured.client_properties)}.",
    ]


def metrics_lines(view: dict[str, Any]) -> list[str]:
    addresses = [node["metrics"] for node in view["nodes"] if node["metrics"]]
    return [f"metrics: {' '.join(f'http://{address}/metrics' for address in addresses)}"] if addresses else []


def stay(local: LocalCluster) -> None:
    """Waits for Ctrl-C, and reports a node that ends."""
    echo("Ctrl-C stops the cluster.")
    running = {process.name for process in local.running()}
    while running:
        time.sleep(WATCH_S)
        now = {process.name for process in local.running()}
        for name in sorted(running - now):
            echo(f"{name} ended; its log is in {local.directory}", err=True)
        running = now
    raise ClusterError("all nodes of the cluster have ended")


def stop_and_say(local: LocalCluster) -> None:
    """Stops the cluster; a second Ctrl-C does not leave processes behind."""
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in local.stop():
            echo(f"{name} did not stop in time and was killed", err=True)
    finally:
        signal.signal(signal.SIGINT, earlier)
    echo("Stopped.")
