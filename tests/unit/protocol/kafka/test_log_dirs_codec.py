"""DescribeLogDirs responses by hand against kio, every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import log_dirs_codec as codec
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.support.kafka_values import error_codes, int32s, int64s, names

VERSIONS = range(SUPPORTED[ApiKey.DESCRIBE_LOG_DIRS].min, SUPPORTED[ApiKey.DESCRIBE_LOG_DIRS].max + 1)

replicas = st.tuples(int32s, int64s, int64s, st.booleans())
directories = st.tuples(
    error_codes,
    names,
    st.dictionaries(names, st.lists(replicas, max_size=3), max_size=3),
    st.tuples(int64s, int64s),
)


@pytest.mark.parametrize("version", VERSIONS)
@given(error=error_codes, found=st.lists(directories, max_size=2))
@settings(max_examples=40)
def test_responses(version: int, error: int, found: list[Any]) -> None:
    bodies = [
        {
            "error_code": code,
            "log_dir": path,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": n, "partition_size": size, "offset_lag": lag, "is_future_key": is_future}
                        for n, size, lag, is_future in rows
                    ],
                }
                for name, rows in topics.items()
            ],
            "total_bytes": space[0],
            "usable_bytes": space[1],
        }
        for code, path, topics, space in found
    ]
    encoded = [
        codec.encode_directory(
            version,
            code,
            path,
            {
                name: [codec.encode_replica(version, *row[:3], is_future=row[3]) for row in rows]
                for name, rows in topics.items()
            },
            space,
        )
        for code, path, topics, space in found
    ]
    body = {"throttle_time": 0, "error_code": error, "results": bodies}
    assert codec.encode_response(version, error, encoded) == messages.encode_response(
        ApiKey.DESCRIBE_LOG_DIRS, version, body
    )
