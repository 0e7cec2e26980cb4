"""What the admin commands share: options, the client, one-line errors and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tools.admin.naming import Where, server_options
from tools.terminal import echo_lines

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., None])


def format_option(command: Command) -> Command:
    """`--format text|json`; the command gets it as `output`."""
    return click.option(
        "--format",
        "output",
        type=click.Choice(["text", "json"]),
        default="text",
        help="text for people, json for scripts",
    )(command)


def connection_options(command: Command) -> Command:
    """`--bootstrap-server`, `--dir`, `--command-config` and `--format`, the same on every command."""
    return server_options(format_option(command))


def connect(where: Where) -> KafkaAdmin:
    """Raises AdminError for a bad option."""
    from tools.admin.kafka_admin import KafkaAdmin  # imported when needed, so that `--help` is fast

    return KafkaAdmin(where.servers(), where.command_config)


def print_json(value: Any) -> None:
    echo_lines(json.dumps(value, indent=2).split("\n"))
