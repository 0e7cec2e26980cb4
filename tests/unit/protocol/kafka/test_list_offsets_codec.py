"""ListOffsets responses by hand against kio, every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import list_offsets_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.list_offsets_codec import ListOffsetsPartitionResult
from tests.support.kafka_values import durations_ms, error_codes, int32s, int64s, names

VERSIONS = range(SUPPORTED[ApiKey.LIST_OFFSETS].min, SUPPORTED[ApiKey.LIST_OFFSETS].max + 1)

results = st.builds(ListOffsetsPartitionResult, int32s, error_codes, int64s, int64s, int32s)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=st.lists(st.tuples(names, st.lists(results, max_size=3)), max_size=3), throttle_ms=durations_ms)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(
    version: int, topics: list[tuple[str, list[ListOffsetsPartitionResult]]], throttle_ms: int
) -> None:
    body = {
        "throttle_time": throttle_ms,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": result.partition,
                        "error_code": result.error,
                        "timestamp": result.timestamp,
                        "offset": result.offset,
                        "leader_epoch": result.leader_epoch,
                    }
                    for result in partitions
                ],
            }
            for name, partitions in topics
        ],
    }
    expected = messages.encode_response(ApiKey.LIST_OFFSETS, version, body)
    assert list_offsets_codec.encode_response(version, topics, throttle_ms) == expected
