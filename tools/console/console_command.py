"""`ottla console`: one page that shows a cluster as it lives."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protocol.plain_text import escaped
from tools.addresses import is_loopback
from tools.admin.bootstrap import BOOTSTRAP_VARIABLE, addresses_of, find_bootstrap_servers
from tools.admin.naming import (
    Where,
    bootstrap_option,
    command_config_option,
    compose_option,
    default_config,
    directory_option,
    fault_command_option,
)
from tools.cluster.processes import ClusterError
from tools.cluster.run_directory import DEFAULT_DIRECTORY, RunDirectory
from tools.console.access import TOKEN_LENGTH_MIN, Access
from tools.failures import ExpectedError
from tools.faults.cluster import Cluster
from tools.faults.clusters import find_target
from tools.numbers import FILE
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.console.metrics import Metrics
    from tools.timeline.sources import Sources
    from tools.wire.security import Security

TOKEN_BYTES = 24
TOKEN_LENGTH_MAX = 1000
LISTEN = "127.0.0.1:8080"


@click.command()
@directory_option()
@compose_option()
@bootstrap_option(f"any Kafka cluster, without its event logs  [default: ${BOOTSTRAP_VARIABLE}]")
@command_config_option()
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="serve the page at this address; port 0 takes a free one",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="another host name by which browsers may request the page; may be repeated",
)
@click.option("--allow-faults", is_flag=True, help="show buttons that kill, pause and heal")
@fault_command_option("with --bootstrap-server: run this program for each fault, as `ottla fault` does")
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="the token that every request needs; without one, one is made if others can reach the page",
)
def console(
    directory: Path | None,
    project: str | None,
    bootstrap_server: str | None,
    command_config: Path | None,
    listen: str,
    names: Sequence[str],
    allow_faults: bool,
    fault_command: str | None,
    token_file: Path | None,
) -> None:
    """Serve a page that shows the cluster live, until Ctrl-C.

    Brokers, controller, partitions, groups, moves, the timeline, throughput and latency. The page is for this machine only, unless
    --listen names another address; then every request needs a token.
    """
    if sum(option is not None for option in (directory, project, bootstrap_server)) > 1:
        raise click.UsageError("--dir, --compose and --bootstrap-server name a cluster each; give one of them")
    if fault_command is not None and not allow_faults:
        raise click.UsageError("--fault-command is for --allow-faults")
    if fault_command is not None and bootstrap_server is None:
        raise click.UsageError("--fault-command is for --bootstrap-server; --dir and --compose know their processes")
    if allow_faults and bootstrap_server is not None and fault_command is None:
        raise click.UsageError("--allow-faults needs to know the processes: use --dir, --compose or --fault-command")
    host, port = listen_address(listen)
    try:
        target, addresses, sources, metrics, title, security = find(
            directory, project, bootstrap_server, command_config, fault_command
        )
        token = read_token(token_file) if token_file is not None else None
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(TOKEN_BYTES)
        access = Access(
            token, is_loopback(host), [*names, host, *([] if is_loopback(host) else [socket.gethostname()])]
        )
        try:
            asyncio.run(run(target, addresses, sources, metrics, title, security, access, host, port, allow_faults))
        finally:
            if sources is not None:
                sources.close()
    except ExpectedError as problem:
        raise click.ClickException(escaped(str(problem))) from None


async def run(
    target: Cluster | None,
    addresses: Mapping[int, tuple[str, int]],
    sources: Sources | None,
    metrics: Metrics | None,
    title: str,
    security: Security,
    access: Access,
    host: str,
    port: int,
    allow_faults: bool,
) -> None:
    """Serves until SIGINT or SIGTERM. Raises ClusterError if the address cannot be used."""
    from tools.console.feed import Feed
    from tools.console.harm import Harm
    from tools.console.server import Console, serve
    from tools.console.watch import Watch

    feed = Feed()
    watch = Watch(feed, addresses, security, target, sources, metrics)
    harm = None
    if allow_faults and target is not None:
        is_logged = sources is not None and any(log.broker is None for log in sources.logs)
        harm = Harm(target, lambda text, is_trigger: watch.say("console", text, is_trigger), is_logged=is_logged)
    about = {"cluster": title, "timeline": sources is not None}
    try:
        runner, port = await serve(Console(feed, access, about, harm), host, port)
    except OSError as problem:
        raise ClusterError(f"--listen {host}:{port}: {problem.strerror or problem}; choose another address") from None
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    watch.start()
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    echo(f"{title} is at {address}{f'?token={access.token}' if access.token is not None else ''}  (Ctrl-C ends it)")
    failing = asyncio.create_task(watch.failed())
    waiting = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((failing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
    finally:
        failing.cancel()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await runner.cleanup()
        if harm is not None:
            await harm.close()
        await watch.close()


def find(
    directory: Path | None,
    project: str | None,
    bootstrap_server: str | None,
    command_config: Path | None,
    fault_command: str | None,
) -> tuple[Cluster | None, dict[int, tuple[str, int]], Sources | None, Metrics | None, str, Security]:
    """The cluster of the options: its processes, the addresses of its brokers, its logs, its metrics pages, its name, how to connect.

    Raises ClusterError, NoBootstrapServer, BadClientProperties.
    """
    from tools.wire.client_properties import read_security

    if project is None and Where(bootstrap_server).run_directory() and RunDirectory(DEFAULT_DIRECTORY).brokers():
        directory = directory or DEFAULT_DIRECTORY
    config = command_config or (default_config(directory) if project is None else None)
    security = read_security(config, ignores_others=command_config is None)
    if directory is not None:
        from tools.console.metrics import Metrics
        from tools.timeline import sources

        target = find_target(directory, None, None, None)
        assert target is not None
        return (
            target,
            {broker: target.address(broker) for broker in target.broker_ids},
            sources.of_directory(directory),
            Metrics(lambda: metrics_pages(directory)),
            f"The cluster in {directory}",
            security,
        )
    if project is not None:
        from tools.timeline import sources

        target = find_target(None, project, None, None)
        assert target is not None
        addresses = {broker: target.address(broker) for broker in target.broker_ids}
        if config is None:
            security = target.security
        return target, addresses, sources.of_compose(project), None, f"The Compose project {project}", security
    servers = find_bootstrap_servers(bootstrap_server)
    target = find_target(None, None, fault_command, servers) if fault_command is not None else None
    return target, asyncio.run(brokers_at(servers, security)), None, None, f"The cluster at {servers}", security


async def brokers_at(servers: str, security: Security) -> dict[int, tuple[str, int]]:
    """The brokers that the first of these addresses knows. Raises ClusterError."""
    from protocol.kafka.api_keys import ApiKey
    from tools.console.broker_connections import CLIENT
    from tools.wire.client import Client
    from tools.wire.cluster_view import METADATA_VERSION, ClusterView, Unreachable

    try:
        view = ClusterView(Client(CLIENT, security), addresses_of(servers), [])
        body = {"topics": [], "allow_auto_topic_creation": False}
        answer = await view.ask_any(ApiKey.METADATA, METADATA_VERSION, body)
    except (ValueError, Unreachable) as problem:
        raise ClusterError(f"--bootstrap-server: {problem}") from None
    return {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}


def metrics_pages(directory: Path) -> dict[str, str]:
    """Broker -> `host:port` of its metrics page, for those that have one."""
    found = {str(broker.id): broker.metrics_address() for broker in RunDirectory(directory).brokers()}
    return {broker: address for broker, address in found.items() if address}


def listen_address(text: str) -> tuple[str, int]:
    """Raises BadParameter."""
    try:
        ((host, port),) = addresses_of(text) if ":" in text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, for example {LISTEN}", param_hint="--listen") from None
    return host, port


def read_token(file: Path) -> str:
    """Raises ClusterError."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except OSError as problem:
        raise ClusterError(f"--token-file {file}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ClusterError(f"--token-file {file}: a token is ASCII text") from None
    if not TOKEN_LENGTH_MIN <= len(token) <= TOKEN_LENGTH_MAX or not all("!" <= each <= "~" for each in token):
        raise ClusterError(
            f"--token-file {file}: a token has {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} characters, without spaces"
        )
    return token
