"""The command `ottla`. Each group of subcommands is imported when it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from protocol.plain_text import escaped, escaped_lines
from tools.failures import ExpectedError, said_of
from tools.terminal import echo

INTERRUPTED = 130


class Subcommand(NamedTuple):
    """Where a command is, and its line in `ottla --help` (for which nothing is imported)."""

    module: str
    help: str


SUBCOMMANDS: Mapping[str, Subcommand] = MappingProxyType(
    {
        "acl": Subcommand("tools.admin.acl_commands", "Add, remove and list ACLs: who may do what."),
        "bench": Subcommand("tools.bench.bench_commands", "Measure a cluster under load, and parts of ottla."),
        "broker": Subcommand("tools.cluster.cluster_commands", "Run one broker in the foreground."),
        "cluster": Subcommand(
            "tools.cluster.cluster_commands", "Start, inspect, disturb and stop a cluster on this machine."
        ),
        "completion": Subcommand("tools.completion", "Print the script that completes commands in bash, zsh or fish."),
        "config": Subcommand("tools.admin.config_commands", "Describe and alter configs of topics and brokers."),
        "console": Subcommand(
            "tools.console.console_command", "Serve a page that shows a cluster live, and can break it."
        ),
        "consume": Subcommand("tools.clients.consume_command", "Print the records of a topic as they arrive."),
        "demo": Subcommand(
            "tools.replay.replay_commands", "Start a cluster, replay events through it, kill a leader and report."
        ),
        "elect": Subcommand(
            "tools.admin.elect_commands", "Elect preferred leaders, or leaders that may lack records (unclean)."
        ),
        "fault": Subcommand(
            "tools.faults.fault_commands", "Kill, pause, isolate or slow down who has a role now, and heal it again."
        ),
        "group": Subcommand("tools.groups.group_commands", "List, describe, reset and delete consumer groups."),
        "inspect": Subcommand(
            "tools.inspect.inspect_commands", "Read and check logs on disk, and compare ZooKeeper with the brokers."
        ),
        "links": Subcommand(
            "tools.links.links_command", "Stand before any Kafka, and break single requests of its clients."
        ),
        "produce": Subcommand("tools.clients.produce_command", "Write lines from standard input to a topic."),
        "quota": Subcommand("tools.admin.quota_commands", "Set, remove and list quotas of clients."),
        "reassign": Subcommand("tools.admin.reassign_commands", "Move replicas to other brokers."),
        "replay": Subcommand(
            "tools.replay.replay_commands", "Record, import or make a load, replay it with Spark, and compare the runs."
        ),
        "sim": Subcommand(
            "tools.sim.sim_commands", "Run the brokers in a simulated world, where a seed decides everything."
        ),
        "timeline": Subcommand(
            "tools.timeline.timeline_command", "Tell what happened, from the event logs of all brokers."
        ),
        "topic": Subcommand("tools.admin.topic_commands", "Create, list, describe, alter and delete topics."),
        "user": Subcommand(
            "tools.admin.user_commands", "Create, alter, delete and list users with a password (SCRAM)."
        ),
        "verify": Subcommand("tools.verify.verify_command", "Judge a program of yours while brokers fail."),
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

    def invoke(self, ctx: click.Context) -> object:
        """One line for an error of a file, or another expected error, that no command handled.

        Exits with 130 on a Ctrl-C that no command handled, for example during imports (click would exit with 1).
        """
        try:
            return super().invoke(ctx)
        except click.ClickException as problem:
            vars(problem)["message"] = escaped_lines(problem.message)  # it may quote text from the cluster
            raise
        except ExpectedError as problem:
            raise click.ClickException(escaped(str(problem))) from None
        except OSError as problem:
            if problem.filename is None:
                raise
            raise click.ClickException(escaped(said_of(problem))) from None
        except UnicodeEncodeError as problem:
            raise click.ClickException(f"{problem.object!r} is not UTF-8") from None
        except KeyboardInterrupt:
            echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes subcommands, without importing them, and options."""
        commands = [
            CompletionItem(name, help=SUBCOMMANDS[name].help)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].help) for name in self.list_commands(ctx)])


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or ctx.resilient_parsing:
        return
    asked = subprocess.run([sys.executable, "-m", "broker", "--version"], capture_output=True, text=True, check=False)
    form = asked.stdout.strip() if asked.returncode == 0 else "they cannot be started"
    from importlib import metadata  # it loads 40 modules, which no other command needs

    echo(f"ottla, version {metadata.version('ottla')}; brokers: {form}")
    ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version, and whether brokers are compiled.",
)
def main() -> None:
    """A Kafka-compatible broker cluster."""


if __name__ == "__main__":
    main()
