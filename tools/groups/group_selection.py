"""The groups that a command applies to, and the client for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from tools.admin.naming import Where
from tools.failures import AdminError
from tools.groups.completion import complete_groups

if TYPE_CHECKING:
    from tools.groups.kafka_groups import KafkaGroups

Command = TypeVar("Command", bound=Callable[..., None])


def group_options(command: Command) -> Command:
    """The groups: arguments, or Kafka's `--group NAME`, which may be repeated."""
    command = click.option(
        "--group",
        "group_options",
        multiple=True,
        metavar="GROUP",
        help="a group (Kafka's form); may be repeated",
        shell_complete=complete_groups,
    )(command)
    return click.argument("group_names", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)(command)


def all_groups_option(command: Command) -> Command:
    return click.option("--all-groups", is_flag=True, help="all consumer groups of the cluster")(command)


def named_groups(arguments: Sequence[str], options: Sequence[str], *, all_groups: bool = False) -> list[str]:
    """The given names, each once. Raises UsageError for none, and for names beside `--all-groups`."""
    names = list(dict.fromkeys([*arguments, *options]))
    if all_groups and names:
        raise click.UsageError("group names and --all-groups cannot be used together.")
    if not all_groups and not names:
        raise click.UsageError("missing group name, or --all-groups.")
    if "" in names:
        raise click.UsageError("a group name must not be empty.")
    return names


def connect_groups(where: Where) -> KafkaGroups:
    """The client for groups. Raises AdminError, also if no broker answers."""
    from tools.groups.kafka_groups import KafkaGroups  # imported when needed, so that `--help` is fast

    client = KafkaGroups(where.servers(), where.command_config)
    client.cluster()
    return client


def every_group(client: KafkaGroups) -> list[str]:
    """The names of all consumer groups. Raises AdminError if a broker did not answer, because some would be missing."""
    groups, problems = client.list_groups()
    if problems:
        raise AdminError(f"not all brokers listed their groups: {'; '.join(problems)}; see `ottla cluster health`")
    return [group.group for group in groups]
