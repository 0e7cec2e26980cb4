"""The topic of a command, as Kafka has it (`--topic NAME`) or as an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from tools.admin.completion import complete_topics

Command = TypeVar("Command", bound=Callable[..., None])


def topic_argument(command: Command) -> Command:
    """Gives the command `topic_name` and `topic_option`."""
    command = click.option(
        "--topic", "topic_option", metavar="TOPIC", help="the topic (Kafka's form)", shell_complete=complete_topics
    )(command)
    return click.argument("topic_name", required=False, metavar="[TOPIC]", shell_complete=complete_topics)(command)


def topic_if_any(argument: str | None, option: str | None) -> str | None:
    """Raises UsageError for two."""
    if argument is not None and option is not None:
        raise click.UsageError("name the topic once: as argument or with --topic.")
    return argument if argument is not None else option


def one_topic(argument: str | None, option: str | None) -> str:
    """Raises UsageError for none, and for two."""
    topic = topic_if_any(argument, option)
    if not topic:
        raise click.UsageError("which topic? Give its name.")
    return topic
