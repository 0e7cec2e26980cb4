"""What commands print. All text from a cluster is escaped for the terminal here, and only here.

Clients and brokers choose group, member and client ids, config values and error messages: see `protocol.plain_text`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from protocol.plain_text import escaped, escaped_lines


def echo(line: str = "", *, err: bool = False) -> None:
    """Prints one line. Tabs are kept, because Kafka's tables use them."""
    click.echo("\t".join(map(escaped, line.split("\t"))), err=err)


def echo_lines(lines: Iterable[str]) -> None:
    """Prints each line as `echo` does."""
    for line in lines:
        echo(line)


def echo_data(text: str) -> None:
    """Prints data for programs without adding a newline: unchanged into a pipe or file, escaped on a terminal."""
    click.echo(for_terminal(text) if sys.stdout.isatty() else text, nl=False)


def for_terminal(text: str) -> str:
    """`text` with every control character except newlines and tabs escaped."""
    return "\t".join(map(escaped_lines, text.split("\t")))
