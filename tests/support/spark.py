"""A Spark session in the process of a test module, with the environment of the replay's job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tools.cluster.java import find_java
from tools.replay.run.job import new_session
from tools.replay.run.spark_process import job_environment, write_java_home

UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark compiles each query; for the few rows of a test that takes longer than the query."""


@contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """The session; its JVM has ended afterwards."""
    scratch.mkdir()
    environment = job_environment(write_java_home(scratch / "java-home", Path(find_java())), scratch)
    with mock.patch.dict(os.environ, environment, clear=True):
        session = new_session(2)
        for key, value in UNCOMPILED.items():
            session.conf.set(key, value)
        try:
            yield session
        finally:
            session.stop()
            gateway = SparkContext._gateway
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait(30)
                SparkContext._gateway = SparkContext._jvm = None
