"""`ottla links`: stands before all brokers of any Kafka, so that `ottla fault ... --links DIR` can break single requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click

from tools.addresses import is_loopback
from tools.admin.bootstrap import BOOTSTRAP_VARIABLE, addresses_of, find_bootstrap_servers
from tools.admin.naming import bootstrap_option, directory_option
from tools.failures import errors_in_one_line
from tools.links.links_directory import DEFAULT_DIRECTORY, LinksDirectory
from tools.private_files import open_log
from tools.terminal import echo

LISTEN = "127.0.0.1:19092"
ALL_ADDRESSES = ("0.0.0.0", "::")
EVENTS_BYTES_MAX = 16 * 1024 * 1024
LINES_MAX = 1000
"""So many lines wait to be printed."""
END_S = 1.0


@click.command()
@bootstrap_option(f"any Kafka cluster, at a listener without TLS and SASL  [default: ${BOOTSTRAP_VARIABLE}]")
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="where clients begin; brokers get the free ports behind it",
)
@click.option("--advertise", metavar="HOST", help="the host that clients are told  [default: that of --listen]")
@directory_option(
    "for rules and the log of what they hit; `ottla fault ... --links DIR` makes rules", default=DEFAULT_DIRECTORY
)
def links(bootstrap_server: str | None, listen: str, advertise: str | None, directory: Path) -> None:
    """Stand before all brokers of any Kafka, and break single requests, until Ctrl-C.

    Clients connect to --listen, and are told of no other way to the brokers. `ottla fault answer produce with NOT_LEADER_OR_FOLLOWER
    once --links DIR` and its relatives say what happens to requests; without rules, everything passes.
    """
    host, port = _listen_address(listen)
    advertise = advertised_host(host, advertise)
    with errors_in_one_line():
        servers = find_bootstrap_servers(bootstrap_server)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        import uvloop

        files = LinksDirectory(directory)
        with files.owned():
            uvloop.run(_run(files, servers, host, port, advertise))


async def _run(files: LinksDirectory, servers: str, host: str, port: int, advertise: str) -> None:
    """Until SIGINT, SIGTERM or SIGHUP. Raises ClusterError."""
    from tools.links.proxy import Proxy

    said = Said(echo)
    proxy = Proxy(files, host, port, advertise, Told(files, said.line))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    waiting = asyncio.create_task(stopped.wait())
    starting = asyncio.create_task(proxy.start(addresses_of(servers)))
    await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
    following = asyncio.create_task(proxy.run())
    try:
        if starting.done():
            starting.result()
            ports = ", ".join(f"broker {broker.id} at port {broker.port}" for broker in proxy.brokers.values())
            echo(f"The links to {servers} listen at {proxy.listen}; {ports}  (Ctrl-C ends them)")
            if not is_loopback(host):
                echo("Other machines can connect, without authentication.", err=True)
            await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
    finally:
        for task in (starting, following, waiting):
            task.cancel()
        await asyncio.wait([starting, following, waiting])
        said.end()


class Said:
    """Prints lines in a thread: requests do not wait for a terminal that stands still, and a pipe that nobody reads stops nothing."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._thread = threading.Thread(target=self._run, name="said", daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """It is left out if too many wait."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(text)

    def end(self) -> None:
        """Returns when all is said, or after a moment."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=END_S)
        self._thread.join(END_S)

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            with contextlib.suppress(OSError):
                self._print(text)


class Told:
    """Says what rules hit, by `say`, and writes it to the log of the broker, as brokers do."""

    def __init__(self, files: LinksDirectory, say: Callable[[str], None]) -> None:
        self._files = files
        self._say = say

    def __call__(self, kind: str, broker: int, **fields: object) -> None:
        who = fields["client_id"] or fields["address"]
        self._say(
            f"broker {broker}: {fields['api']} v{fields['version']} of {who}: {fields['rule']} ({fields['hits']})"
        )
        row = {"time_ms": time.time_ns() // 1_000_000, "kind": kind, **fields}
        path = self._files.events(broker)
        try:
            log = open_log(path)
            try:
                if os.fstat(log).st_size < EVENTS_BYTES_MAX:
                    os.write(log, json.dumps(row, separators=(",", ":")).encode() + b"\n")
            finally:
                os.close(log)
        except OSError as problem:
            logging.getLogger("links").warning("%s cannot be written: %s", path, problem.strerror)


def advertised_host(listen: str, advertise: str | None) -> str:
    """The host that clients are told, without the brackets of an IPv6 address. Raises BadParameter."""
    if advertise is None:
        return "localhost" if listen in ALL_ADDRESSES else listen
    host = advertise[1:-1] if advertise.startswith("[") and advertise.endswith("]") else advertise
    if not host or not host.isprintable() or set(host) & set(" ,/[]"):
        raise click.BadParameter(f"{advertise!r} is not a host", param_hint="--advertise")
    return host


def _listen_address(text: str) -> tuple[str, int]:
    """Raises BadParameter."""
    try:
        ((host, port),) = addresses_of(text) if ":" in text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, for example {LISTEN}", param_hint="--listen") from None
    return host, port
