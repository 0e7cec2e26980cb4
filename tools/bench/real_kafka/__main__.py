"""A real Kafka on this machine, until Ctrl-C: `python -m tools.bench.real_kafka --kraft --brokers 3`, after `make kafka`."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import click

from tools.bench.real_kafka.harm import harmable
from tools.bench.real_kafka.jars import NoKafka, fetched_jars
from tools.bench.real_kafka.running import running_kafka
from tools.cluster.ownership import own_servers
from tools.failures import errors_in_one_line
from tools.interrupts import termination_as_interrupt
from tools.numbers import IntRange


@click.command()
@click.option("--kraft", is_flag=True, help="Kafka 4 in KRaft mode.  [default: Kafka 3.9 and a ZooKeeper]")
@click.option("--brokers", type=IntRange(1, 9), default=3, show_default=True)
def real_kafka(kraft: bool, brokers: int) -> None:
    """Start a real Kafka in a temporary directory, and print where it is and the `--fault-command` that kills its brokers."""
    own_servers()
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ottla-real-kafka-") as name:
        directory = Path(name)
        jars = fetched_jars(kraft=kraft)
        if jars is None:
            raise NoKafka("no jars of Kafka: run `make kafka`, which needs Maven and a JDK")
        with (
            termination_as_interrupt(),
            running_kafka(directory, jars, brokers) as kafka,
            harmable(kafka, directory) as harm,
        ):
            click.echo(f"Kafka {jars.version}: --bootstrap-server {kafka.bootstrap_servers} --fault-command '{harm}'")
            signal.pause()


if __name__ == "__main__":
    real_kafka()
