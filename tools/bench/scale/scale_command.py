"""`ottla bench scale`: its options and its output."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from tools.bench.scale import scale_bench
from tools.cluster.local_cluster import ClusterError
from tools.cluster.tables import aligned
from tools.numbers import SIZES


@click.command("scale")
@click.option(
    "--partitions-per-broker", type=SIZES, default="1000,5000,10000", show_default=True, help="Sizes to measure."
)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def scale_command(partitions_per_broker: Sequence[int], output: str) -> None:
    """Measure three brokers with many partitions, each on all three: create, kill, rolling restart, stop, start and delete."""
    phases: list[scale_bench.Phase] = []
    failure = ""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        try:
            for phase in scale_bench.run(
                Path(directory), partitions_per_broker, lambda text: click.echo(text, err=True)
            ):
                phases.append(phase)
                click.echo("  " + "   ".join(scale_bench.table([phase])[1][2:]), err=True)
        except (ClusterError, TimeoutError, RuntimeError) as error:
            failure = str(error)
    if output == "json":
        click.echo(json.dumps([asdict(phase) for phase in phases]))
    else:
        click.echo("\n".join(aligned(scale_bench.table(phases))))
    if failure:
        raise click.ClickException(failure)
