"""The command `ottla`. Each group of subcommands is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import click


class Subcommand(NamedTuple):
    """Where a command is, and its line in `ottla --help` (for which nothing is imported)."""

    module: str
    help: str


SUBCOMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "broker": Subcommand("tools.cluster.commands", "Run one broker in the foreground."),
        "cluster": Subcommand("tools.cluster.commands", "Start, look at, harm and stop a cluster on this machine."),
        "demo": Subcommand("tools.replay.commands", "A cluster, a replayed event stream, a killed leader, a report."),
        "replay": Subcommand("tools.replay.commands", "Replay a real event stream through a cluster with Spark."),
        "topic": Subcommand("tools.admin.topic_commands", "Create, list and describe topics."),
    }
)


class LazyGroup(click.Group):
    """A group that imports a subcommand's module when the subcommand is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name].module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ottla")
def main() -> None:
    """A Kafka-compatible broker cluster."""


if __name__ == "__main__":
    main()
