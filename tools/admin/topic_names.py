"""The topic name of a command: an argument, or Kafka's `--topic NAME`."""

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
    """The topic, or None. Raises UsageError if it is given twice."""
    if argument is not None and option is not None:
        raise click.UsageError("give the topic once: as an argument or with --topic.")
    return argument if argument is not None else option


def one_topic(argument: str | None, option: str | None) -> str:
    """The topic. Raises UsageError for none, and if it is given twice."""
    topic = topic_if_any(argument, option)
    if not topic:
        raise click.UsageError("missing topic name.")
    return topic
