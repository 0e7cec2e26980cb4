"""The Spark session of the job: what the replay needs of Spark, whatever `spark-defaults.conf` says (RPL-4)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tools.cluster.java import find_java
from tools.replay.places import Place, inside, uri_of
from tools.replay.run.control import KILL_TIMEOUT_S
from tools.replay.run.masters import is_local
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import OutputDirectory, ReplayError
from tools.replay.run.spark_process import PACKAGES_ZIP, SparkSettings, job_environment, write_java_home

ROWS_OF_A_BATCH = 8192
PROBE = "probe"
ADAPTIVE = "spark.sql.adaptive.enabled"


def required(tasks: int) -> dict[str, str]:
    """Without these, operations would be sent twice, or not by all tasks at the same time."""
    return {
        # A second attempt would send all operations again.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        # When one task is lost, Spark ends the others. They first write what they have done.
        "spark.python.task.killTimeout": f"{KILL_TIMEOUT_S}s",
        # A core for each task, and no more. All tasks of the replay run at the same time.
        "spark.cores.max": str(tasks),
        "spark.executor.instances": str(tasks),
        "spark.dynamicAllocation.enabled": "false",
    }


USUAL = {
    "spark.app.name": "ottla replay",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    # Spark's checks of overflow take a fifth of the analysis. No sum of a replay's nanoseconds or bytes is near 2 ** 63.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_A_BATCH),
    "spark.executor.cores": "1",
    # An executor has one core, which threads of a garbage collector would share.
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
}
USUAL_HERE = {"spark.sql.shuffle.partitions": "4", ADAPTIVE: "false"}
"""On this machine: planning many small tasks would take longer than the analysis."""


def new_session(tasks: int, *, sends: bool = True, here: bool = False) -> SparkSession:
    """The session; without a master from spark-submit it is local, with a slot for every task, because tasks mostly wait.

    `sends`: whether the load is sent. An analysis alone takes all the cores that it gets. `here`: on this machine, whatever spark-submit
    was given.
    """
    SparkContext._ensure_initialized()  # otherwise SparkConf does not know what spark-submit was given
    configuration = SparkConf()
    if here or not configuration.contains("spark.master"):
        configuration.setMaster("local[*]" if here else f"local[{max(tasks, 2)}]")
        configuration.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    configuration.set("spark.ui.showConsoleProgress", "false")  # spark-submit sets it for Python
    for key, value in (required(tasks) if sends else {}).items():
        configuration.set(key, value)
    usual = USUAL | (USUAL_HERE if is_local(configuration.get("spark.master")) else {})
    for key, value in usual.items():
        configuration.setIfMissing(key, value)
    return SparkSession.builder.config(conf=configuration).getOrCreate()


@contextmanager
def session_here(scratch: Path, spark: SparkSettings) -> Iterator[SparkSession]:
    """A session in this process, which has its files and its log in `scratch`; the one that is open, if one is."""
    if (found := SparkSession.getActiveSession()) is not None:
        yield found
        return
    scratch = scratch.absolute()
    os.environ.update(job_environment(write_java_home(scratch / "java-home", Path(find_java())), scratch, spark))
    if not is_local(spark.master):
        write_packages(scratch / PACKAGES_ZIP)
    standard_error = os.dup(2)
    with (scratch / "spark.log").open("ab") as log:
        os.dup2(log.fileno(), 2)  # the JVM takes it, and this process has its own again
    try:
        session = new_session(os.cpu_count() or 1, sends=False)
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def planned_tasks(session: SparkSession) -> Iterator[None]:
    """Within this context, a stage has as many tasks as its query says: Spark joins no small ones."""
    before = session.conf.get(ADAPTIVE)
    session.conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        session.conf.set(ADAPTIVE, before)


def session_for_results(session: SparkSession, output: OutputDirectory) -> SparkSession:
    """One whose tasks reach the results: another one on this machine, if they are here and the executors are elsewhere."""
    if output.uri or is_local(session.sparkContext.master):
        return session
    session.stop()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return new_session(0, sends=False, here=True)


def check_place(session: SparkSession, place: Place, tasks: int) -> None:
    """Raises ReplayError if so many tasks cannot write to the place, or if one does not see what another has written."""
    probe = uri_of(inside(place, PROBE))
    session.range(0, tasks, 1, tasks).write.mode("overwrite").parquet(probe)
    seen = read_parquet(session, probe).count()
    if seen != tasks:
        raise ReplayError(
            f"{seen} of {tasks} executors share {place}; choose another --out, such as hdfs://... or s3a://..."
        )


def spark_schema(schema: pyarrow.Schema) -> StructType:
    """The same columns for Spark. All may be null."""
    return from_arrow_schema(pyarrow.schema([column.with_nullable(True) for column in schema]))


def read_parquet(session: SparkSession, place: Place, schema: pyarrow.Schema | None = None) -> DataFrame:
    """The rows at a place, whatever Spark's default file system is, and whatever characters a path has."""
    reader = session.read.option("__globPaths__", "false")  # DataSource.GLOB_PATHS_KEY: `{` and `*` are no patterns
    if schema is not None:
        return reader.schema(spark_schema(schema)).parquet(uri_of(place))
    return reader.option("mergeSchema", "true").parquet(uri_of(place))  # a file may lack columns that another has
