"""One Spark session for all tests that import traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import running_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
