"""An archive of the classes of Spark: JVMs that map it start in half of the time. A thorough run makes it first.

Java makes it when a JVM ends (`-XX:ArchiveClassesAtExit`). It is used if the class path and the Java are the same, and ignored otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "SPARK_SUBMIT_OPTS"
SECONDS_MAX = 300
TYPICAL = """
from tools.replay.run.session import new_session
session = new_session(2)
rows = session.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS key", "array(id) AS ids")
rows.mapInArrow(lambda batches: batches, rows.schema).write.mode("overwrite").parquet({path!r})
session.read.parquet({path!r}).createOrReplaceTempView("rows")
session.sql(
    "SELECT key, count(*), max_by(id, struct(id)), min(before), sum(one) FROM ("
    " SELECT *, max(id) OVER (PARTITION BY key ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,"
    " lag(id) OVER (PARTITION BY key ORDER BY id) AS last FROM rows LATERAL VIEW explode(ids) AS one"
    ") a LEFT ANTI JOIN (SELECT id FROM rows WHERE id > 90) b USING (id) GROUP BY GROUPING SETS ((key), ())"
).toArrow()
session.createDataFrame([("a", 1)], "name string, number int").collect()
session.stop()
"""
"""Uses what the replay's analysis uses."""


def options(archive: Path) -> str:
    """For JVMs that use the archive. They say nothing if it does not fit."""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:class+path=off"


def make(archive: Path, scratch: Path) -> bool:
    """Makes the archive. False if this Java cannot."""
    archive.unlink(missing_ok=True)
    environment = os.environ | {VARIABLE: f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"}
    code = TYPICAL.format(path=str(scratch / "spark-rows"))
    try:
        # The JVM has the pipe too, so this returns when it has ended.
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        archive.unlink(missing_ok=True)
    return archive.exists()
