"""`python -m tools.bench.replay_analysis`: how long the analysis of a replay takes, for a made run of any size.

The run has two thirds produces and one third fetches, of 200 clients and 12 partitions, with latencies of an exponential distribution
whose median is 2 ms. It is written in bounded memory, about 30 bytes a row, and then analysed as `ottla replay report` does.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import click
import numpy
import pyarrow
import pyarrow.parquet

from tools.numbers import IntRange
from tools.replay.load.results import SCHEMA
from tools.replay.run.compare_runs_command import analyse
from tools.replay.run.outcome import read_analysis
from tools.replay.run.plan import OutputDirectory, Plan, write_json

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
ROWS_PER_SECOND = 20_000
ROWS_OF_A_FILE = 200_000
TOPIC, PARTITIONS, CLIENTS, BROKERS = "t", 12, 200, 3
SENT_WITHIN_NS = 300_000
MEDIAN_NS = 2_000_000
FAILED = 1e-4
RECORDS = 10


def write_run(directory: Path, rows: int, seed: int) -> OutputDirectory:
    """The files that a replay leaves for its analysis."""
    output = OutputDirectory(directory)
    output.operations.mkdir(parents=True)
    output.write_plan(
        Plan(
            run=1,
            trace="none",
            directory=str(directory),
            bootstrap_servers="127.0.0.1:1",
            topics={TOPIC: TOPIC},
            partitions={TOPIC: PARTITIONS},
            start_offsets={TOPIC: [0] * PARTITIONS},
            tasks=2,
            speeds=[1.0],
            step_s=0.0,
            clients=1,
            bytes=1.0,
            answer_timeout_s=60.0,
            control="127.0.0.1:1",
            trace_rows=rows,
            trace_seconds=rows / ROWS_PER_SECOND,
        )
    )
    random = numpy.random.default_rng(seed)
    for number, begin in enumerate(range(0, rows, ROWS_OF_A_FILE)):
        table = operations(random, numpy.arange(begin, min(begin + ROWS_OF_A_FILE, rows)))
        pyarrow.parquet.write_table(table, output.operations / f"task-0000-{number:06}.parquet", compression="zstd")
    write_json(output.faults, [])
    write_json(output.tasks, {"tasks": [], "problem": ""})
    return output


def operations(random: numpy.random.Generator, index: numpy.ndarray) -> pyarrow.Table:
    """The rows with these numbers."""
    count = len(index)
    client, partition = random.integers(0, CLIENTS, count), random.integers(0, PARTITIONS, count)
    scheduled = START_NS + index * SECOND // ROWS_PER_SECOND
    sent = scheduled + random.integers(0, SENT_WITHIN_NS, count)
    took = random.exponential(MEDIAN_NS / numpy.log(2), count).astype(numpy.int64)
    columns = {
        "request": index,
        "op": numpy.array(["produce", "fetch"])[(index % 3 == 2).astype(int)],
        "client": numpy.array([f"client-{number}" for number in range(CLIENTS)])[client],
        "producer": client,
        "task": client % 2,
        "topic": numpy.full(count, TOPIC),
        "partition": partition,
        "scheduled": scheduled,
        "sent": sent,
        "answered": sent + took,
        "records": numpy.full(count, RECORDS),
        "bytes": random.integers(500, 1500, count),
        "acks": numpy.full(count, -1),
        "error": pyarrow.array(numpy.full(count, "REQUEST_TIMED_OUT"), mask=random.random(count) >= FAILED),
        "leader": partition % BROKERS,
        "offset": index * RECORDS // PARTITIONS,
        "first_sequence": index * RECORDS,
        "retries": numpy.zeros(count, numpy.int64),
    }
    return pyarrow.table(columns).cast(SCHEMA)


@click.command()
@click.option("--rows", type=IntRange(1), default=10_000_000, show_default=True)
@click.option("--seed", type=IntRange(), default=1, show_default=True)
def main(rows: int, seed: int) -> None:
    """Write a run with that many operations, and analyse it."""
    with tempfile.TemporaryDirectory(prefix="ottla-analysis-") as directory:
        output = write_run(Path(directory) / "run", rows, seed)
        began = time.monotonic()
        analyse(output.path)
        seconds = time.monotonic() - began
        assert read_analysis(output)["totals"]["operations"] == rows
        click.echo(f"{rows:,} operations: {seconds:.1f} s, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
