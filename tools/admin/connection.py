"""What the admin commands share: options, the client, one-line errors and JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from protocol.plain_text import escaped
from tools.admin.naming import Where, server_options
from tools.failures import AdminError
from tools.terminal import echo, echo_lines

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


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Prints an error as one line on stderr and exits with 1; with 130 after Ctrl-C."""
    try:
        yield
    except AdminError as problem:
        raise click.ClickException(escaped(str(problem))) from None
    except KeyboardInterrupt:
        echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)


def print_json(value: Any) -> None:
    echo_lines(json.dumps(value, indent=2).split("\n"))
