"""`ottla replay trace import request-log`, `topic` and `segments`, and `ottla replay trace make`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tools.admin.bootstrap import BOOTSTRAP_VARIABLE, DEFAULT_RUN_DIRECTORY
from tools.admin.naming import Where, bootstrap_option, command_config_option, directory_option
from tools.failures import explained
from tools.numbers import EXISTING_FILE, IntRange
from tools.replay.parameters import COMPRESSIONS, TIME_ZONE, out_option, spark_options, topic_for
from tools.terminal import echo, echo_lines


@click.command("request-log")
@click.argument("files", nargs=-1, required=True, type=EXISTING_FILE)
@out_option
@click.option("--hash-clients", is_flag=True, help="Replace the names of clients and groups by hashes.")
@click.option("--time-zone", type=TIME_ZONE, default="UTC", show_default=True, help="The time zone of the log's times.")
@click.option("--topic", "topics", multiple=True, help="Only this topic. Repeatable. [default: all]")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    show_default=True,
    help="Compression of the batches. It is not in the log.",
)
@click.option("--skip-bad-lines", is_flag=True, help="Leave out lines that are cut off, and count them.")
@click.option(
    "--skip-listener", "skip_listeners", multiple=True, help="Leave out requests of this listener. Repeatable."
)
@click.option(
    "--topic-id",
    "topic_names",
    multiple=True,
    type=topic_for("ID=NAME"),
    callback=lambda context, option, pairs: dict(pairs),
    help="Name of a topic id that the log does not explain. Repeatable.",
)
@spark_options
@explained()
def import_request_log(
    files: Sequence[Path], out: Path, master: str | None, spark_settings: Sequence[str], **options: Any
) -> None:
    """Import the request log of a real Kafka of 2.8 or later, by a Spark job.

    FILES are the request logs of one or several brokers, rotated or not, packed by gzip or not, in any order.
    """

    from tools.replay.run.spark_process import spark_settings_of
    from tools.replay.traces.request_log import ImportOptions, import_request_log

    found = import_request_log(files, out, ImportOptions(**options), spark_settings_of(master, spark_settings))
    echo(f"{out}: {found.lines:,} lines of {len(files)} files read")
    echo_lines(f"  {line}" for line in found.describe())


@click.command("topic")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@out_option
@bootstrap_option(
    f"Read from this cluster, of any Kafka. [default: ${BOOTSTRAP_VARIABLE}, else --dir ./{DEFAULT_RUN_DIRECTORY}]"
)
@directory_option("Read from the local cluster in this run directory.")
@command_config_option("Connect by TLS and SASL as this properties file says.")
@explained()
def import_topic(
    topics: Sequence[str], out: Path, bootstrap_server: str | None, directory: Path | None, command_config: Path | None
) -> None:
    """Import what was written to TOPICs, from their record batches: times, sizes, compression, transactions, sizes and hashes of keys.

    No value is kept, and nothing is installed in the cluster. Who read is not in a topic.
    """

    from tools.admin.bootstrap import addresses_of, find_bootstrap_servers
    from tools.replay.traces.topic_import import import_topics
    from tools.wire.client_properties import read_security

    addresses = addresses_of(find_bootstrap_servers(bootstrap_server, directory))
    config = Where(bootstrap_server, directory, command_config).command_config
    security = read_security(config, ignores_others=config != command_config)
    rows, partitions = import_topics(addresses, security, topics, out)
    echo(f"{out}: {rows:,} batches of {sum(partitions.values()):,} partitions")


@click.command("segments")
@click.argument("files", nargs=-1, required=True, type=EXISTING_FILE)
@out_option
@explained()
def import_segment_files(files: Sequence[Path], out: Path) -> None:
    """Import copied segment files, such as orders-0/00000000000000000000.log, as `import topic` reads a topic."""

    from tools.replay.traces.topic_import import import_segments

    rows, partitions = import_segments(files, out)
    echo(f"{out}: {rows:,} batches of {len(files):,} files, of {', '.join(sorted(partitions))}")


def _print_example(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from tools.replay.traces.workload import EXAMPLE

        click.echo(EXAMPLE.read_text(), nl=False)
        ctx.exit()


@click.command("make")
@click.argument("workload", type=EXISTING_FILE)
@out_option
@click.option("--seed", type=IntRange(min=0), help="Use this seed instead of the file's.")
@click.option(
    "--example",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_example,
    help="Print an example of a workload file.",
)
@explained()
def make(workload: Path, out: Path, seed: int | None) -> None:
    """Make a trace from a workload file (YAML). The same file and seed give the same rows."""

    from tools.replay.traces.synthesis import make_trace
    from tools.replay.traces.workload import read_workload

    load = read_workload(workload)
    rows = make_trace(load if seed is None else replace(load, seed=seed), out)
    echo(f"{out}: {rows:,} rows")
