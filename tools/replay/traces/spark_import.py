"""What imports as Spark jobs have in common: the session, and rows kept and sorted as Parquet files beside the trace (RPL-5)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pyarrow.parquet
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tools.replay.places import uri_of
from tools.replay.run.job import reason
from tools.replay.run.session import session_here, spark_schema
from tools.replay.run.spark_process import SparkSettings
from tools.replay.traces.schema import TraceError


def columns(types: str, **nested: pyarrow.DataType) -> pyarrow.Schema:
    """The schema of `name:type name:type ...`, then of `nested` columns."""
    pairs = [pair.split(":") for pair in types.split()]
    return pyarrow.schema([*((name, pyarrow.type_for_alias(kind)) for name, kind in pairs), *nested.items()])


def mapped(
    frame: DataFrame,
    work: Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]],
    made: pyarrow.Schema,
) -> DataFrame:
    """What `work` makes of the rows, in Spark's tasks."""
    return frame.mapInArrow(work, spark_schema(made))


@contextmanager
def import_session(scratch: Path, spark: SparkSettings) -> Iterator[SparkSession]:
    """`scratch`: an empty directory, which executors on other machines must see at the same path. Raises TraceError."""
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module="pyspark"
    )  # it speaks of pandas, which no import uses
    try:
        with session_here(scratch, spark) as session:
            yield session
    except (PySparkException, Py4JError) as problem:
        raise TraceError(reason(str(problem))) from None


def kept(frame: DataFrame, directory: Path, partition_by: str | None = None) -> DataFrame:
    """The rows, computed once and read from files from now on."""
    uri = uri_of(directory.absolute())
    frame.write.parquet(uri, partitionBy=partition_by)
    reader = frame.sparkSession.read.option("__globPaths__", "false")  # `{` and `*` in a path are no patterns
    return reader.schema(frame.schema).parquet(uri)


def sorted_batches(frame: DataFrame, directory: Path, order: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """The rows, sorted by Spark."""
    frame.orderBy(*order).write.parquet(uri_of(directory.absolute()))
    for file in sorted(directory.glob("part-*.parquet")):
        with pyarrow.parquet.ParquetFile(file) as opened:
            yield from opened.iter_batches()
