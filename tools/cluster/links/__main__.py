"""`python -m tools.cluster.links --config DIR/links/links.json`: the process of the links, started and stopped with its cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from tools.cluster.links import control_server
from tools.cluster.links.proxy import Proxy
from tools.cluster.links.wiring import BadWiring, LinksDirectory


async def run(directory: LinksDirectory) -> None:
    """Until SIGTERM or SIGINT."""
    proxy = Proxy(directory.path.parent, directory.ports())
    ports = asyncio.create_task(proxy.run())
    server = await control_server.serve(proxy, directory.control_socket)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait([ports, waiting], return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if ports.done():
        ports.result()
    ports.cancel()
    directory.control_socket.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster.links", description="The links of a local cluster.")
    parser.add_argument("--config", type=Path, required=True, help="DIR/links/links.json")
    config = parser.parse_args().config
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        uvloop.run(run(LinksDirectory(config.parent)))
    except (BadWiring, OSError) as problem:
        sys.exit(f"ottla links: {problem}")


if __name__ == "__main__":
    main()
