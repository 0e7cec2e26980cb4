"""`ottla inspect znodes`: compares ZooKeeper with the brokers. The other commands of `ottla inspect` are in `log_commands`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from protocol.types import Address
from tools.admin.bootstrap import DEFAULT_CONTROL_PLANE_LISTENER, DEFAULT_RUN_DIRECTORY, addresses_of, no_answer
from tools.admin.completion import complete_topics
from tools.admin.connection import format_option, print_json
from tools.admin.naming import (
    bootstrap_option,
    command_config_option,
    default_config,
    directory_option,
    zookeeper_option,
    zookeeper_tls_option,
)
from tools.cluster.zookeeper_place import ZooKeeperPlace, named_place, place_of_brokers
from tools.cluster.zookeeper_view import ZooKeeperReader, ZooKeeperView, client_address
from tools.failures import AdminError, errors_in_one_line
from tools.inspect.broker_view import BrokerView, live_brokers, read_broker
from tools.inspect.comparison import Row, compare, comparison_json, comparison_lines
from tools.inspect.conformance.conformance_command import conformance
from tools.inspect.log_commands import log_command, verify
from tools.terminal import echo_lines
from tools.wire.client_properties import read_security
from tools.wire.security import PLAINTEXT, Security

ATTEMPTS = 4
PAUSE_S = 0.5
"""Seconds between two comparisons. Only lasting differences are reported, not a change on its way from ZooKeeper to the brokers."""


@click.group()
def inspect() -> None:
    """Inspect a cluster: ZooKeeper, brokers and disks."""


inspect.add_command(log_command)
inspect.add_command(verify)
inspect.add_command(conformance)


@inspect.command()
@zookeeper_option("the cluster's ZooKeeper; default: that of the cluster in --dir")
@zookeeper_tls_option()
@directory_option()
@bootstrap_option("ask the brokers at these addresses; default: the addresses in ZooKeeper")
@command_config_option()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="compare only this topic; may be repeated",
    shell_complete=complete_topics,
)
@click.option("--differences-only", is_flag=True, help="show only differences")
@format_option
def znodes(
    zookeeper: str | None,
    zk_tls_config: Path | None,
    directory: Path | None,
    bootstrap_server: str | None,
    command_config: Path | None,
    topics: Sequence[str],
    differences_only: bool,
    output: str,
) -> None:
    """Compare ZooKeeper with each broker's answers. The exit code is 1 if they differ (marked !=), or if a znode is faulty."""
    logging.getLogger("protocol.zk").setLevel(logging.CRITICAL)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if zookeeper is not None and directory is not None:
        raise click.UsageError("--zookeeper and --dir name a cluster each; give one of them")
    if zk_tls_config is not None and zookeeper is None:
        raise click.UsageError("--zk-tls-config-file is for --zookeeper")
    with errors_in_one_line():
        config = command_config or default_config(None if zookeeper else directory or DEFAULT_RUN_DIRECTORY)
        security = read_security(config, ignores_others=True)
        place = (
            place_of_brokers(directory or DEFAULT_RUN_DIRECTORY)
            if zookeeper is None
            else named_place(zookeeper, zk_tls_config)
        )
        if place is None:
            raise click.UsageError(f"missing --zookeeper: there is no cluster in {directory or DEFAULT_RUN_DIRECTORY}.")
        view, rows = asyncio.run(look(place, bootstrap_server, topics or None, security))
    if output == "json":
        print_json(comparison_json(rows, view, differences_only=differences_only))
    else:
        echo_lines(comparison_lines(rows, view, differences_only=differences_only))
    if view.unreadable or view.topics_without_id or any(row.is_different for row in rows):
        sys.exit(1)


async def look(
    zookeeper: ZooKeeperPlace,
    bootstrap_server: str | None,
    topics: Collection[str] | None,
    security: Security = PLAINTEXT,
) -> tuple[ZooKeeperView, list[Row]]:
    """ZooKeeper's view, and its comparison with the brokers. Reads both up to ATTEMPTS times, until they agree. Raises AdminError."""
    reader = ZooKeeperReader(zookeeper)
    try:
        await reader.open()
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            view = await reader.read(topics)
            missing = sorted(set(topics or ()) - set(view.topic_ids))
            if missing:
                raise AdminError(f"ZooKeeper has no topic {', '.join(missing)}")
            addresses = await asyncio.to_thread(brokers_to_ask, view, bootstrap_server, security)
            answers = await asyncio.gather(
                *(
                    asyncio.to_thread(read_broker, broker, address, topics, security)
                    for broker, address in addresses.items()
                )
            )
            brokers: Mapping[int, BrokerView | None] = dict(zip(addresses, answers, strict=True))
            rows = compare(view, brokers)
            if not view.topics_without_id and not any(row.is_different for row in rows):
                break
        return view, rows
    finally:
        await reader.close()


def brokers_to_ask(view: ZooKeeperView, bootstrap_server: str | None, security: Security) -> dict[int, Address]:
    """Broker id -> address. Raises AdminError if there is none, or if `bootstrap_server` does not answer."""
    if bootstrap_server is None:
        found = {
            broker: client_address(info, DEFAULT_CONTROL_PLANE_LISTENER, security.protocol)
            for broker, info in view.brokers.items()
        }
        addresses = {broker: address for broker, address in found.items() if address is not None}
        if not addresses:
            raise AdminError(
                f"ZooKeeper names no live broker with a listener for {security.protocol}: start one, or use --command-config"
            )
        return addresses
    try:
        given = addresses_of(bootstrap_server)
    except ValueError as problem:
        raise AdminError(f"--bootstrap-server: {problem}") from None
    for address in given:
        answer = live_brokers(address, security)
        if answer is not None:
            return answer
    raise AdminError(no_answer(bootstrap_server))
