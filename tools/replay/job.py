"""The Spark job: `python -m tools.replay.job replay|analyse OUTPUT_DIRECTORY`, or the same by spark-submit (RPL-4).

`replay` carries out `plan.json`, writes `operations.parquet` and then does `analyse`, which writes `analysis.json`.

All tasks are one barrier stage, so Spark starts them together or not at all: tasks 0..P-1 produce, the others read. They agree
on the start (the latest of their clocks plus a moment), and synchronise again when the producing tasks are done, to exchange the
offsets up to which each partition must be readable. On several machines the clocks must be synchronised (NTP).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import BarrierTaskContext, SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tools.replay.analysis import analyse
from tools.replay.clients import Clock
from tools.replay.fetch_task import FetchTask
from tools.replay.plan import OPERATIONS_DDL, PARENT_PIPE_VARIABLE, OperationRow, OutputDirectory, Plan, write_json
from tools.replay.produce_task import Operation, ProduceTask, acknowledged_ends
from tools.replay.progress import ProgressSender, TaskProgress
from tools.replay.schedule import due_after_s, partition_of, partitions_of_reader, spread

START_LEAD_S = 1.0
STANDARD_INPUT = 0


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("replay", "analyse"):
        print("usage: python -m tools.replay.job replay|analyse OUTPUT_DIRECTORY", file=sys.stderr)
        return 2
    if PARENT_PIPE_VARIABLE in os.environ:
        threading.Thread(target=die_with_parent, name="die-with-parent", daemon=True).start()
    output = OutputDirectory(Path(arguments[1]).absolute())
    plan = output.read_plan()
    session = new_session(plan.task_count)
    try:
        if arguments[0] == "replay":
            replay(session, plan, output)
        operations = session.read.parquet(str(output.operations))
        write_json(output.analysis, analyse(session, operations, plan, output.read_faults()))
    finally:
        session.stop()
    return 0


def die_with_parent() -> None:
    """Ends the whole process group (this driver and its JVM, whose workers follow) once standard input closes:
    the parent holds the other end, and may be killed before it can clean up."""
    # Not sys.stdin, whose lock this thread would hold when the interpreter ends.
    while os.read(STANDARD_INPUT, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def new_session(task_count: int) -> SparkSession:
    """The session; without a master from spark-submit it is local, with a slot for every task, because tasks mostly wait."""
    configuration = SparkConf()
    if not configuration.contains("spark.master"):
        configuration.setMaster(f"local[{task_count}]")
        configuration.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    settings = {
        "spark.app.name": "ottla replay",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        # A retried stage would send everything again.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
    }
    for key, value in settings.items():
        configuration.setIfMissing(key, value)
    return SparkSession.builder.config(conf=configuration).getOrCreate()


def replay(session: SparkSession, plan: Plan, output: OutputDirectory) -> None:
    """Runs the tasks and writes a row for each operation."""
    trace = session.read.parquet(plan.trace)
    columns = ("op", "client", "partition", "bytes", "acks", "event_id", "key", "value")
    operations = trace.select(sql.unix_micros("time").alias("time_us"), *columns)
    task_of_client = spread(count_by_client(operations), plan.producers)

    def routed(row: Any) -> Iterator[tuple[int, Operation]]:
        return route(row, plan, task_of_client)

    def run(task: int, keyed: Iterable[tuple[int, Operation]]) -> Iterator[OperationRow]:
        return iter(run_task(task, [operation for _, operation in keyed], plan))

    by_task = operations.rdd.flatMap(routed).partitionBy(plan.task_count, int)
    rows = by_task.barrier().mapPartitionsWithIndex(run)
    session.createDataFrame(rows, OPERATIONS_DDL, verifySchema=False).write.mode("overwrite").parquet(
        str(output.operations)
    )


def count_by_client(operations: DataFrame) -> dict[str, int]:
    counts = operations.where("op = 'produce'").groupBy("client").count().collect()
    return {row["client"]: row["count"] for row in counts}


def route(row: Any, plan: Plan, task_of_client: Mapping[str, int]) -> Iterator[tuple[int, Operation]]:
    """The task of an operation in the trace, and the operation with its partition and due time.

    A fetch goes to the task that reads the partition to which its event is produced.
    """
    key = None if row["key"] is None else bytes(row["key"])
    recorded = int(row["partition"])
    partition = recorded if recorded >= 0 else partition_of(key, row["event_id"], plan.partition_count)
    operation = Operation(
        due_s=due_after_s(row["time_us"], plan.first_time_us, plan.speed),
        client=row["client"],
        partition=partition,
        size=row["bytes"],
        acks=row["acks"],
        event_id=row["event_id"],
        key=key,
        value=None if row["value"] is None else bytes(row["value"]),
    )
    reader = plan.producers + partition % plan.readers
    if row["op"] == "fetch":
        yield reader, operation
        return
    yield task_of_client[row["client"]], operation
    if plan.read_everything:
        yield reader, operation


def run_task(task: int, operations: list[Operation], plan: Plan) -> list[OperationRow]:
    """Runs inside a Spark Python worker, one of `plan.task_count` that start together."""
    context = BarrierTaskContext.get()
    progress = ProgressSender(plan.progress_address, TaskProgress(task))
    if task < plan.producers:
        producing = ProduceTask(task, plan, operations, progress)
        producing.connect()
        rows = producing.run(agree_on_start(context, progress))
        context.allGather(json.dumps(acknowledged_ends(rows)))
        return rows
    partitions = partitions_of_reader(task - plan.producers, plan.readers, plan.partition_count)
    reading = FetchTask(task, plan, partitions, operations, progress)
    reading.connect()
    start = agree_on_start(context, progress)
    return reading.run(start, meet_in_background(context))


def agree_on_start(context: Any, progress: ProgressSender) -> float:
    """The time at which all tasks start, in seconds since 1970."""
    clocks = context.allGather(repr(Clock().now()))
    progress.progress.started = max(map(float, clocks)) + START_LEAD_S
    progress.send(at_once=True)
    return progress.progress.started


def meet_in_background(context: Any) -> Callable[[], Mapping[int, int] | None]:
    """Waits for the producing tasks in a thread, because reading continues meanwhile.

    Returns a function that returns the acknowledged ends (partition -> offset) once all tasks are there, None before.
    """
    met: list[str] = []
    thread = threading.Thread(target=lambda: met.extend(context.allGather("{}")), name="meet", daemon=True)
    thread.start()

    def acknowledged() -> Mapping[int, int] | None:
        if thread.is_alive():
            return None
        return {int(partition): end for each in met for partition, end in json.loads(each).items()}

    return acknowledged


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
