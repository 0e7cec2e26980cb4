"""`ottla bench`: loads for any Kafka address (`closed_loop`), and measurements of ottla on this machine."""

from __future__ import annotations

import click

from tools.bench.closed_loop.load_commands import COMMANDS as LOADS
from tools.bench.compare.kafka_comparison_command import compare_command
from tools.bench.controller.controller_command import controller_command
from tools.bench.cost_command import cost_command
from tools.bench.profile_command import profile_command
from tools.bench.scale.scale_command import scale_command


@click.group()
def bench() -> None:
    """Measure any Kafka cluster under load, or parts of ottla on this machine.

    The loads are closed loops: a connection sends the next request when an earlier one is answered. While the cluster stands still,
    they send nothing, so percentiles hide it, and only the maximum shows it. `ottla replay run` sends at given times.
    """


for command in (*LOADS, compare_command, cost_command, profile_command, controller_command, scale_command):
    bench.add_command(command)
