"""An archive of the classes of Spark: the JVM of a job that maps it starts in half of the time, and each first query is quicker.

    python -m tools.replay.run.spark_archive

makes it once for a Java and the jars of pyspark, beside them in the virtual environment; `make setup` does. Without it, everything works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path

from tools.cluster.class_archive import SILENCE, Archive, say
from tools.cluster.java import find_java

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Options of the JVM that spark-submit starts."""
SECONDS_MAX = 300
TYPICAL = """
from pathlib import Path
from tools.replay.run.session import session_here
from tools.replay.run.spark_process import INTERPRETED, SparkSettings
with session_here(Path.cwd(), SparkSettings(rows=1)) as session:
    for interpreted in (True, False):
        if not interpreted:
            for setting in INTERPRETED:
                session.conf.unset(setting.partition("=")[0])
        rows = session.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS key", "array(id) AS ids")
        rows.mapInArrow(lambda batches: batches, rows.schema, barrier=True).write.mode("overwrite").parquet("rows")
        session.read.parquet("rows").createOrReplaceTempView("rows")
        session.sql(
            "SELECT key, count(*), max_by(id, struct(id)), min(before), sum(one) FROM ("
            " SELECT *, max(id) OVER (PARTITION BY key ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,"
            " lag(id) OVER (PARTITION BY key ORDER BY id) AS last FROM rows LATERAL VIEW explode(ids) AS one"
            ") a LEFT ANTI JOIN (SELECT id FROM rows WHERE id > 90) b USING (id) GROUP BY GROUPING SETS ((key), ())"
        ).toArrow()
        session.createDataFrame([("a", 1)], "name string, number int").collect()
"""
"""Uses what a replay uses."""


def options() -> str:
    """For the JVM of a job that pyspark starts here. Raises JavaNotFound."""
    return " ".join(_archive().options())


def make() -> str:
    """Makes the archive if it is not there, by a session that runs for a moment. Returns what came of it, in words."""
    archive = _archive()
    found = archive.find()
    if found is not None:
        return f"it is there already: {found}"
    with tempfile.TemporaryDirectory(prefix="ottla-classes-") as scratch:
        unfinished = Path(scratch) / "archive"
        paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            VARIABLE: " ".join([f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:cds+dynamic=off", *SILENCE]),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        # The JVM has the pipe too, so this returns when it has ended.
        done = subprocess.run(
            [sys.executable, "-c", TYPICAL],
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if not unfinished.exists():
            return f"{archive.java} cannot make one: {(done.stdout + done.stderr).strip()[-300:]}"
        for old in archive.directory.glob(f"{archive.program}-*.jsa"):
            old.unlink()
        return f"made {archive.keep(unfinished)}"


def _archive() -> Archive:
    package = util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    jars = sorted((Path(package.origin).parent / "jars").glob("*.jar"))
    return Archive(Path(sys.prefix) / "share" / "ottla", "spark", find_java(), os.pathsep.join(map(str, jars)))


if __name__ == "__main__":
    say("Spark", make, "a replay starts some seconds later")
