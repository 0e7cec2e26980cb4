"""A Spark session in this process, with the environment of the replay's jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tools.cluster.java import find_java
from tools.replay.run.session import new_session
from tools.replay.run.spark_process import SparkSettings, job_environment, write_java_home


@contextmanager
def running_session(scratch: Path) -> Iterator[SparkSession]:
    java_home = write_java_home(scratch / "java-home", Path(find_java()))
    environment = job_environment(java_home, scratch, SparkSettings(rows=1))
    with mock.patch.dict(os.environ, environment, clear=True):
        found = new_session(2)
    try:
        yield found
    finally:
        found.stop()
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)
            SparkContext._gateway = SparkContext._jvm = None
