"""What commands print. Texts from a cluster are made fit for a terminal here, and only here.

Group, member and client ids, config values and error messages are what some client or broker has chosen: `protocol.plain_text`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from protocol.plain_text import escaped, escaped_lines


def echo(line: str = "", *, err: bool = False) -> None:
    """Prints one line. Tabs stay, since Kafka's tables have them."""
    click.echo("\t".join(map(escaped, line.split("\t"))), err=err)


def echo_lines(lines: Iterable[str]) -> None:
    """Prints lines, each as `echo`."""
    for line in lines:
        echo(line)


def echo_data(text: str) -> None:
    """Prints what a program may read, without another newline: as it is into a pipe or a file, made fit for a terminal on one."""
    click.echo(for_terminal(text) if sys.stdout.isatty() else text, nl=False)


def for_terminal(text: str) -> str:
    """`text` with everything but newlines and tabs escaped."""
    return "\t".join(map(escaped_lines, text.split("\t")))
