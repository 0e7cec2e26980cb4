"""What a replay did not do because it lost a task: the operations of the trace that have no result.

An operation without a result may have been sent: a task that is killed has not written its last few seconds.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tools.replay.run.masters import file_uri
from tools.replay.run.plan import OutputDirectory, Plan
from tools.replay.run.stage import assigned

KEY = ["request", "op", "client", "topic", "partition"]
COLUMNS = ["task", "time_ns", *KEY, "records", "bytes"]


def write_undone(session: SparkSession, plan: Plan, output: OutputDirectory) -> list[dict[str, Any]]:
    """Writes the operations without a result to `undone`, in the order of the trace. Topics and partitions are the cluster's.

    Returns a row for each task: `task`, `expected` and `undone` operations, and `first_ns`, the trace's time of the first of them.
    """
    expected = assigned(session, plan).select(*COLUMNS)
    done = session.read.parquet(file_uri(output.operations)).select(*KEY)
    undone = expected.join(done, KEY, "left_anti")
    undone.orderBy("time_ns", "request").write.mode("overwrite").parquet(file_uri(output.undone))
    counts = session.read.parquet(file_uri(output.undone)).groupBy("task")
    left = counts.agg(sql.count("*").alias("undone"), sql.min("time_ns").alias("first_ns"))
    of_tasks = expected.groupBy("task").agg(sql.count("*").alias("expected"))
    rows = of_tasks.join(left, "task", "left").fillna(0, ["undone"]).orderBy("task").collect()
    return [row.asDict() for row in rows]
