"""The command `ottla demo`, and the group `ottla replay`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tools.admin.naming import bootstrap_option, command_config_option, directory_option, zookeeper_tls_option
from tools.failures import guarded
from tools.numbers import DIRECTORY, IntRange
from tools.replay.parameters import POSITIVE, WHOLE_YEAR_DAYS, flight_options
from tools.replay.recording.recording_commands import record
from tools.replay.run.compare_runs_command import compare
from tools.replay.run.run_commands import report, run, submit_command
from tools.replay.traces.source_commands import import_request_log, import_segment_files, import_topic, make
from tools.replay.traces.trace_commands import import_, trace

WEEK_A_MINUTE = 7.0 * 24 * 60


@click.command()
@flight_options
@click.option(
    "--speed",
    type=POSITIVE,
    default=WEEK_A_MINUTE,
    show_default=True,
    help="Speed-up over real time; 10080 replays a week in a minute.",
)
@click.option("--brokers", type=IntRange(1, 20), default=3, show_default=True, help="Number of brokers to start.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill a leader during the replay.")
@click.option("--out", type=DIRECTORY, default="demo-out", show_default=True, help="Results.")
@directory_option(
    "The cluster's run directory; an existing cluster is used unchanged. [default: OUT/cluster, created again]"
)
@bootstrap_option("Use this cluster instead of starting one; no broker is killed.")
@command_config_option("Properties file for --bootstrap-server: how to connect by TLS and SASL.")
@click.option("--secure", is_flag=True, help="Start a cluster with TLS, users who log in, and ACLs.")
@click.option("--zookeeper", help="Use this ZooKeeper (host:port[/chroot]) instead of starting one.")
@zookeeper_tls_option("File with zookeeper.ssl.* settings, for --zookeeper; the brokers get them.")
@guarded
def demo(
    year: bool,
    days: int,
    start_day: datetime,
    command_config: Path | None,
    zk_tls_config: Path | None,
    **options: Any,
) -> int:
    """Start a cluster, replay flights through it, kill a leader, and report what was lost (nothing)."""
    if command_config is not None and options["bootstrap_server"] is None:
        raise click.UsageError(
            "--command-config needs --bootstrap-server: the demo knows how to connect to its own cluster"
        )
    if options["secure"] and options["bootstrap_server"] is not None:
        raise click.UsageError("--secure is for a cluster that the demo starts: without --bootstrap-server")

    if zk_tls_config is not None and options["zookeeper"] is None:
        raise click.UsageError("--zk-tls-config-file is for --zookeeper.")

    from tools.cluster.zookeeper_place import settings_for_brokers
    from tools.replay.demo.demo import DemoOptions, run_demo
    from tools.wire.client_properties import read_security

    return run_demo(
        DemoOptions(
            start_day=start_day.date(),
            days=WHOLE_YEAR_DAYS if year else days,
            security=read_security(command_config, []),
            zookeeper_settings={} if zk_tls_config is None else settings_for_brokers(zk_tls_config),
            **options,
        )
    )


@click.group()
def replay() -> None:
    """Record, import or make the load of a cluster, replay it with Spark, and measure."""


for command in (compare, record, report, run, submit_command, trace):
    replay.add_command(command)
trace.add_command(make)
for command in (import_request_log, import_topic, import_segment_files):
    import_.add_command(command)
