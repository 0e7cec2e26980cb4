"""The Spark stage that replays a trace: each task gets the rows of its clients, sorted by time, and streams through them (RPL-2)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow
from py4j.protocol import Py4JError
from pyspark import BarrierTaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_type

from tools.admin.bootstrap import addresses_of
from tools.replay.load.pace import Pace
from tools.replay.load.task import COLUMNS, LoadPlan, LoadTask
from tools.replay.run.control import ControlClient, wait_for_tasks
from tools.replay.run.plan import CLIENTS_KNOWN_MAX, GROUP_NAMES, Plan, ReplayError
from tools.replay.run.session import planned_tasks, read_parquet, spark_schema
from tools.replay.traces.schema import ABSENT, ENDS, FIELDS, OFFSETS, PRODUCE
from tools.wire.security import PLAINTEXT, Security

START_LEAD_NS = 3_000_000_000
"""Time from the moment when all tasks are ready to the start of the replay. Spark takes a second or more of it to let them know."""
COPIES_APART_MS = 100
"""The copies of a client are spread over this time."""
MADE_KEY_BYTES = 8
CLIENTS_BALANCED_MAX = 100_000
"""With more clients, the hash of a client's name decides its task. The tasks of so many clients are even without a plan."""
OF_CLOCK = ("clock_offset_ns", "clock_uncertainty_ns", "clock_drift_ns", "clock_drift_uncertainty_ns")
DONE = pyarrow.schema([(name, pyarrow.int64()) for name in ("task", "expected", "sent", *OF_CLOCK, "started_ns")])


def replay(session: SparkSession, plan: Plan, security: Security = PLAINTEXT) -> list[dict[str, Any]]:
    """Sends the trace's operations. Returns the last report of each task, with the columns of DONE.

    The control server has all results of the tasks then, also if this raises PySparkException because a task has failed.
    """
    rows = assigned(session, plan)
    load = load_plan(plan, security)
    control = plan.control

    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return run_task(iter(batches), load, control)

    with planned_tasks(session):
        done = (
            by_task(session, rows, plan.tasks)
            .sortWithinPartitions("time_ns", "request")
            .select(*COLUMNS)
            .mapInArrow(run, spark_schema(DONE), barrier=True)
        )
        try:
            return [row.asDict() for row in done.collect()]
        except (PySparkException, Py4JError):
            wait_for_tasks(control)
            raise


def by_task(session: SparkSession, rows: DataFrame, tasks: int) -> DataFrame:
    """A partition for each task, which has the task's rows.

    Spark chooses a row's partition by the hash of a column. So each task gets a number whose hash is that of a partition of its own.
    (`repartitionById` does the same from Spark 4.1 on.)
    """
    numbers = session.range(tasks * 64).select(sql.pmod(sql.hash("id"), sql.lit(tasks)), "id").collect()
    chosen = dict(map(tuple, numbers))
    if len(chosen) < tasks:
        raise ReplayError(f"{tasks} tasks are more than can be told apart; use fewer --tasks")
    number = sql.element_at(sql.array(*(sql.lit(chosen[task]) for task in range(tasks))), sql.col("task") + 1)
    return rows.repartition(tasks, number.cast("bigint"))


def assigned(session: SparkSession, plan: Plan) -> DataFrame:
    """The rows of the trace as they are replayed, each with its task: clients multiplied, topics mapped, partitions decided."""
    columns = pyarrow.schema([FIELDS[name] for name in plan.trace_columns]) if plan.trace_columns else None
    rows = with_all_columns(read_parquet(session, plan.trace, columns))
    rows = with_ended_transactions(rows) if plan.trace_has_ends else without_transactions(rows)
    if not plan.groups:
        rows = rows.where(sql.col("op") != OFFSETS)
    copies = plan.clients
    if copies > 1:
        copy = sql.explode(sql.sequence(sql.lit(0), sql.lit(copies - 1)))
        rows = (
            rows.withColumn("copy", copy)
            .withColumn("time_ns", sql.expr(f"time_ns + copy * {COPIES_APART_MS * 1_000_000 // copies}L"))
            .withColumn("request", sql.expr(f"request * {copies} + copy"))
            # Every copy has a number, also the first: otherwise a copy could have the name of another client, such as `app-1`.
            .withColumn("client", sql.expr("concat(client, '-', copy)"))
            .withColumn("group", sql.expr("concat(`group`, '-', copy)"))
        )
    topic = mapped("topic", plan.topics | {"": ""})
    count = mapped("topic", {name: plan.partitions[target] for name, target in plan.topics.items()})
    chosen = sql.expr("coalesce(key_hash, request)")
    rows = rows.withColumn(
        "partition",
        sql.when(sql.col("partition") >= 0, sql.col("partition")).otherwise(sql.pmod(chosen, count)).cast("int"),
    ).withColumn("topic", topic)
    # Compaction needs keys. All records of a batch have the same if the trace does not know better.
    needs_key = sql.col("topic").isin(plan.compacted) & (sql.col("op") == PRODUCE)
    rows = rows.withColumn(
        "key_bytes",
        sql.when(needs_key, sql.coalesce("key_bytes", sql.lit(MADE_KEY_BYTES))).otherwise(sql.col("key_bytes")),
    )
    rows = rows.withColumn(
        "keys", sql.when(sql.col("key_bytes").isNotNull(), sql.coalesce(sql.col("keys"), sql.array(chosen)))
    )
    if plan.bytes != 1:
        rows = rows.withColumn("bytes", sql.expr(f"cast(bytes * {plan.bytes!r}D as bigint)"))
    return with_task(session, rows, plan)


def with_all_columns(rows: DataFrame) -> DataFrame:
    """The rows of a trace with all columns in their types. A column that is absent has the values that `schema.ABSENT` says."""
    columns = []
    for field in FIELDS.values():
        column = sql.col(f"`{field.name}`")
        if field.name not in rows.columns:
            column = sql.monotonically_increasing_id() if field.name == "request" else sql.lit(None)
            for op, values in ABSENT.items():
                if field.name in values:
                    column = sql.when(sql.col("op") == op, sql.lit(values[field.name]))
        columns.append(column.cast(from_arrow_type(field.type)).alias(field.name))
    return rows.select(*columns)


def with_ended_transactions(rows: DataFrame) -> DataFrame:
    """The rows without the transactional ids of which the trace has no end, and without their offsets: nobody knows what their transactions
    were. The others have acks=all, as Kafka's clients do."""
    ids = ["client", "transactional_id"]
    ended = rows.where(sql.col("op").isin(*ENDS)).select(*ids).distinct().withColumn("has_ends", sql.lit(True))
    known = rows.join(sql.broadcast(ended), ids, "left")
    return (
        known.where((sql.col("op") != OFFSETS) | sql.col("has_ends"))
        .withColumn("transactional_id", sql.when(sql.col("has_ends"), sql.col("transactional_id")))
        .withColumn("acks", sql.when(sql.col("has_ends"), sql.lit(-1)).otherwise(sql.col("acks")).cast("smallint"))
        .drop("has_ends")
    )


def without_transactions(rows: DataFrame) -> DataFrame:
    """`with_ended_transactions` of a trace in which none ends."""
    return rows.where(sql.col("op") != OFFSETS).withColumn("transactional_id", sql.lit(None).cast("string"))


def mapped(column: str, values: Mapping[str, Any]) -> Any:
    """A column with `values[x]` for each value x of `column`."""
    pairs = [sql.lit(part) for pair in values.items() for part in pair]
    return sql.create_map(*pairs)[sql.col(column)]


def with_task(session: SparkSession, rows: DataFrame, plan: Plan) -> DataFrame:
    """Adds the column `task`. All rows of a client have the same, so that they keep their order."""
    tasks = plan.tasks
    by_hash = sql.pmod(sql.hash("client"), sql.lit(tasks)).cast("int")
    if tasks == 1:
        return rows.withColumn("task", sql.lit(0))
    if 0 < len(plan.trace_clients) * plan.clients <= CLIENTS_KNOWN_MAX:
        copies = [f"-{copy}" for copy in range(plan.clients)] if plan.clients > 1 else [""]
        known = {f"{name}{copy}": count for name, count in plan.trace_clients.items() for copy in copies}
        return rows.withColumn("task", mapped("client", spread(known, tasks)))
    counts = rows.groupBy("client").count().limit(CLIENTS_BALANCED_MAX + 1).collect()
    if len(counts) > CLIENTS_BALANCED_MAX:
        return rows.withColumn("task", by_hash)
    chosen = spread({row["client"]: row["count"] for row in counts}, tasks)
    table = session.createDataFrame(list(chosen.items()), "client string, task int")
    return rows.join(sql.broadcast(table), "client")


def spread(weights: Mapping[str, int], tasks: int) -> dict[str, int]:
    """Assigns each client (name -> number of operations) to one of the tasks 0..tasks-1, evenly by operations.

    The largest client comes first and goes to the task with the fewest operations; ties are resolved by name, so that the result is
    always the same.
    """
    load = [0] * tasks
    chosen = {}
    for client in sorted(weights, key=lambda name: (-weights[name], name)):
        task = load.index(min(load))
        chosen[client] = task
        load[task] += weights[client]
    return chosen


def load_plan(plan: Plan, security: Security) -> LoadPlan:
    """What a task needs."""
    return LoadPlan(
        run=plan.run,
        bootstrap=addresses_of(plan.bootstrap_servers),
        topics=tuple(sorted(set(plan.topics.values()))),
        pace=Pace(tuple(plan.speeds), plan.step_s) if plan.speeds else None,
        answer_timeout_s=plan.answer_timeout_s,
        group_names=GROUP_NAMES if plan.groups else None,
        group_protocol=plan.group_protocol,
        transactional_ids=GROUP_NAMES,
        start_offsets=plan.start_offsets,
        compacted=frozenset(plan.compacted),
        security=security,
    )


def run_task(
    batches: Iterator[pyarrow.RecordBatch], load: LoadPlan, control_address: str
) -> Iterator[pyarrow.RecordBatch]:
    """Runs one task, inside a Spark Python worker. All tasks start together. Yields the row of DONE."""
    context = BarrierTaskContext.get()
    number = context.partitionId()
    try:
        control = ControlClient(control_address, number)
    except OSError as problem:
        raise ReplayError(
            f"{socket.gethostname()} does not reach the control server at {control_address}: {problem}; "
            "name another address with --control-host"
        ) from None
    task = LoadTask(load, number, control.clock.now_ns, control.keep)
    task.open()
    first = next(batches, None)  # Spark has sorted the rows when the first ones come
    if first is not None:
        task.prepare(first)
    clocks = context.allGather(json.dumps(control.clock.now_ns()))
    started_ns = max(map(int, clocks)) + START_LEAD_NS
    task.start(started_ns)
    control.watch(lambda: task.progress, task.stop)
    expected = 0
    is_wanted = True
    try:
        while first is not None:
            expected += first.num_rows
            is_wanted = is_wanted and task.feed(first)
            first = next(batches, None)
        progress = task.finish()
        clock = (control.offset_ns, control.uncertainty_ns, *(control.drift_ns() or (None, None)))
    except BaseException:  # also when Spark ends the task: what was done is still sent to the driver
        task.stop()
        with contextlib.suppress(Exception):
            task.finish()
        control.close(None)
        raise
    control.close(progress)
    row = {"task": number, "expected": expected, "sent": progress.sent, "started_ns": started_ns}
    yield pyarrow.RecordBatch.from_pylist([row | dict(zip(OF_CLOCK, clock, strict=True))], schema=DONE)
