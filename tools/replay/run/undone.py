"""What a replay did not do because it lost a task: the operations of the trace that have no result.

An operation without a result may have been sent: a task that is killed has not written its last few seconds.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tools.replay.places import uri_of
from tools.replay.run.plan import OutputDirectory, Plan
from tools.replay.run.session import read_parquet
from tools.replay.run.stage import assigned
from tools.replay.traces.schema import FETCH, FIELDS

REQUEST = ["request", "op", "client"]
KEY = [*REQUEST, "topic", "partition"]


def write_undone(session: SparkSession, plan: Plan, output: OutputDirectory) -> list[dict[str, Any]]:
    """Writes the operations without a result to `undone`: a trace that starts with the first of them. Its topics, partitions, clients and
    sizes are those of the replay, so it needs no factors.

    Returns a row for each task: `task`, `expected` and `undone` operations, and `first_ns`, the trace's time of the first of them.
    """
    expected = assigned(session, plan)
    done = read_parquet(session, output.place_of(output.operations)).select(*KEY)
    # A member of a group fetches what it owns, so the results of its fetches may have another topic and partition than the trace.
    of_groups = (sql.col("op") == FETCH) & sql.col("group").isNotNull()
    missing = expected.where(~of_groups).join(done, KEY, "left_anti")
    fetches = expected.where(of_groups).join(done, REQUEST, "left_anti")
    undone = missing.unionByName(fetches).persist()
    left = undone.groupBy("task").agg(sql.count("*").alias("undone"), sql.min("time_ns").alias("first_ns"))
    of_tasks = expected.groupBy("task").agg(sql.count("*").alias("expected"))
    rows = of_tasks.join(left, "task", "left").fillna(0, ["undone"]).orderBy("task").collect()
    first = min((row["first_ns"] for row in rows if row["first_ns"] is not None), default=0)
    trace = undone.withColumn("time_ns", sql.col("time_ns") - first).select(*FIELDS)
    trace.orderBy("time_ns", "request").write.mode("overwrite").parquet(uri_of(output.place_of(output.undone)))
    undone.unpersist()
    return [row.asDict() for row in rows]
