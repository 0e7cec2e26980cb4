"""`python -m tools.bench.replay_load`: what an operation costs the replay, against a target that costs nothing.

Each generator is a process with the part of a replay that a Spark task has: it takes Arrow batches, sends the operations over its own
connections, and writes its rows. First all send as fast as they can; then at half of that rate, which shows how late operations leave.

The cost is CPU time, so it can be compared on a busy machine; rates over wall time and lateness cannot. The load average is printed
with them. With `--spark`, the generators are the tasks of a Spark standalone cluster with as many workers of one core.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import click
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from tools.admin.bootstrap import addresses_of
from tools.bench.bench_commands import Sizes
from tools.bench.free_target import TOPIC, FreeTarget
from tools.bench.standalone_spark import StandaloneSpark
from tools.numbers import FloatRange
from tools.replay.load.pace import Pace
from tools.replay.load.task import COLUMNS, LoadPlan, LoadTask
from tools.replay.run.control import ControlServer
from tools.replay.run.driver import Options, clear_results, new_plan
from tools.replay.run.plan import OutputDirectory
from tools.replay.run.spark_process import SparkProcess, SparkSettings
from tools.replay.traces.schema import SCHEMA, TraceInfo, TraceWriter

PARTITIONS = 8
CLIENTS = 8
"""Of each generator. At most five batches of a client and partition are in flight, so fewer clients would wait for answers."""
RECORD_OVERHEAD = 8
BATCH_HEADER = 61
ROWS = 8192
START_LEAD_NS = 500_000_000
START_TIMEOUT_S = 120.0
RATE_OF_MAXIMUM = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of operation: a batch of so many records of so many bytes. `rate`: operations per second; None: as many as possible."""

    records: int
    record_bytes: int
    rate: float | None = None

    @property
    def batch_bytes(self) -> int:
        return BATCH_HEADER + self.records * (self.record_bytes + RECORD_OVERHEAD)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one generator did."""

    operations: int
    cpu_s: float
    wall_s: float


def batches(load: Load, generator: int) -> Iterator[pyarrow.RecordBatch]:
    """Rows with the columns of a task, without end."""
    fixed = {"op": "produce", "topic": TOPIC, "records": load.records, "bytes": load.batch_bytes, "compression": "none"}
    for first in count(0, ROWS):
        numbers = numpy.arange(first, first + ROWS, dtype=numpy.int64)
        times = (numbers * (1e9 / load.rate)).astype(numpy.int64) if load.rate else numbers
        known: dict[str, Any] = {name: pyarrow.repeat(value, ROWS) for name, value in {**fixed, "acks": -1}.items()}
        names = pyarrow.array([f"client-{generator}-{number}" for number in range(CLIENTS)])
        known |= {
            "time_ns": times,
            "request": numbers,
            "client": names.take(pyarrow.array(numbers % CLIENTS)),
            "partition": numbers // CLIENTS % PARTITIONS,
        }
        arrays = [known[name] if name in known else pyarrow.nulls(ROWS) for name in COLUMNS]
        fields = [SCHEMA.field(name).with_nullable(True) for name in COLUMNS]
        yield pyarrow.table(arrays, names=COLUMNS).cast(pyarrow.schema(fields)).to_batches()[0]


def generate(
    number: int, address: str, load: Load, seconds: float, results: str, together: Barrier, costs: Any
) -> None:
    """One generator, in its process. Puts its Cost into the queue."""
    pace = Pace((1.0,)) if load.rate else None
    plan = LoadPlan(1, addresses_of(address), (TOPIC,), pace, 30.0, results)
    task = LoadTask(plan, number, time.time_ns)
    task.open()
    rows = batches(load, number)
    first = next(rows)
    together.wait(START_TIMEOUT_S)
    began, cpu = time.monotonic(), time.process_time()
    task.start(time.time_ns() + START_LEAD_NS)
    task.feed(first)
    end = began + START_LEAD_NS / 1e9 + seconds
    while time.monotonic() < end:
        task.feed(next(rows))
    task.stop()
    progress = task.finish()
    wall = time.monotonic() - began - START_LEAD_NS / 1e9
    costs.put(Cost(progress.acknowledged, time.process_time() - cpu, wall))


def by_processes(generators: int, address: str, load: Load, seconds: float, results: Path) -> list[Cost]:
    """Runs the generators side by side. Raises RuntimeError if one fails."""
    context = multiprocessing.get_context("spawn")
    together, costs = context.Barrier(generators), context.Queue()
    arguments = (address, load, seconds, str(results), together, costs)
    processes = [context.Process(target=generate, args=(number, *arguments)) for number in range(generators)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a generator failed")
    return [costs.get() for _ in processes]


def by_spark(generators: int, address: str, load: Load, seconds: float, directory: Path, rate: float) -> float:
    """Operations per second of a replay on a standalone cluster. `rate`: about how many are expected. Raises ReplayError."""
    trace = directory / "trace"
    operations = int(rate * seconds)
    with TraceWriter(trace, TraceInfo(0, "a measurement", {TOPIC: PARTITIONS})) as writer:
        for rows in trace_rows(load, generators, operations):
            writer.write(rows)
    output = OutputDirectory(directory)
    with StandaloneSpark(directory / "spark", generators) as spark, ControlServer() as control:
        plan = new_plan(Options(trace, address, directory, speeds=[], tasks=generators), control.address)
        clear_results(output)
        output.write_plan(plan)
        job = SparkProcess(output, ["replay"], SparkSettings(spark.url))
        try:
            job.start()
            while job.is_running(1.0):
                pass
            job.check()
        finally:
            job.stop()
    times = pyarrow.parquet.read_table(output.operations, columns=["sent", "answered"])
    took = pyarrow.compute.max(times["answered"]).as_py() - pyarrow.compute.min(times["sent"]).as_py()
    return float(times.num_rows / took * 1e9)


def trace_rows(load: Load, generators: int, operations: int) -> Iterator[pyarrow.Table]:
    """The same rows as a trace, those of all generators in turns."""
    sources = [batches(load, number) for number in range(generators)]
    for _ in range(0, operations, ROWS * generators):
        table = pyarrow.Table.from_batches([next(source) for source in sources]).sort_by("time_ns")
        table = table.append_column("transactional", pyarrow.repeat(False, table.num_rows))
        table = table.append_column("key_hash", pyarrow.nulls(table.num_rows, SCHEMA.field("key_hash").type))
        yield table


def lateness_ms(results: Path) -> tuple[float, float]:
    """(p50, p99) of how late operations were sent, in ms."""
    table = pyarrow.parquet.read_table(results, columns=["scheduled", "sent"])
    late = pyarrow.compute.subtract(table["sent"], table["scheduled"])
    half, most = pyarrow.compute.quantile(late, [0.5, 0.99]).to_pylist()
    return half / 1e6, most / 1e6


@click.command()
@click.option("--generators", type=Sizes(), default="1,2", show_default=True, help="Numbers of generators to measure.")
@click.option("--records", type=Sizes(), default="1,150", show_default=True, help="Records of a batch to measure.")
@click.option("--record-bytes", default=100, show_default=True, help="Size of a record's value.")
@click.option("--seconds", type=FloatRange(min=1), default=5.0, show_default=True, help="Length of each measurement.")
@click.option("--spark", is_flag=True, help="Also as tasks of a Spark standalone cluster.")
def main(generators: Sequence[int], records: Sequence[int], record_bytes: int, seconds: float, spark: bool) -> None:
    """Measure the replay's generator."""
    click.echo(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for of_batch in records:
        for number in generators:
            with tempfile.TemporaryDirectory(prefix="ottla-replay-load-") as directory:
                measure(Load(of_batch, record_bytes), number, seconds, Path(directory), spark)


def measure(load: Load, generators: int, seconds: float, directory: Path, spark: bool) -> None:
    """Prints the figures of one kind of operation."""
    fast, paced = directory / "fast", directory / "paced"
    for results in (fast, paced):
        results.mkdir()
    with FreeTarget(PARTITIONS) as target:
        costs = by_processes(generators, target.address, load, seconds, fast)
        operations, cpu = sum(cost.operations for cost in costs), sum(cost.cpu_s for cost in costs)
        rate = operations / max(cost.wall_s for cost in costs)
        half = Load(load.records, load.record_bytes, RATE_OF_MAXIMUM * rate / generators)
        by_processes(generators, target.address, half, seconds, paced)
        late = lateness_ms(paced)
        per_core = operations / cpu
        click.echo(
            f"{generators} x batches of {load.records} x {load.record_bytes} B: {per_core:,.0f} operations/s per core "
            f"({1e6 / per_core:.1f} us CPU, {per_core * load.batch_bytes / 1e6:,.1f} MB/s), {rate:,.0f}/s in all; at half of it "
            f"late p50 {late[0]:.2f} ms, p99 {late[1]:.2f} ms; load average {os.getloadavg()[0]:.1f}"
        )
        if spark:
            on_spark = by_spark(generators, target.address, load, seconds, directory / "spark", rate)
            click.echo(f"  {generators} workers of Spark: {on_spark:,.0f}/s; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
