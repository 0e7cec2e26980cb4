"""DescribeConfigs responses by hand against kio, every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import describe_configs_codec as codec
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.support.kafka_values import error_codes, names

VERSIONS = range(SUPPORTED[ApiKey.DESCRIBE_CONFIGS].min, SUPPORTED[ApiKey.DESCRIBE_CONFIGS].max + 1)

int8s = st.integers(-128, 127)
texts = st.none() | names
described = st.fixed_dictionaries(
    {
        "name": names,
        "value": texts,
        "is_read_only": st.booleans(),
        "source": int8s,
        "synonyms": st.lists(st.tuples(names, texts, int8s), max_size=2),
        "config_type": int8s,
        "documentation": texts,
    }
)
results = st.tuples(error_codes, texts, int8s, names, st.lists(described, max_size=3))


@pytest.mark.parametrize("version", VERSIONS)
@given(found=st.lists(results, max_size=3))
@settings(max_examples=40)
def test_responses(version: int, found: list[Any]) -> None:
    bodies = [
        {
            "error_code": error,
            "error_message": message,
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {
                    "name": each["name"],
                    "value": each["value"],
                    "read_only": each["is_read_only"],
                    "config_source": each["source"],
                    "is_sensitive": False,
                    "synonyms": [{"name": n, "value": v, "source": s} for n, v, s in each["synonyms"]],
                    "config_type": each["config_type"],
                    "documentation": each["documentation"],
                }
                for each in configs
            ],
        }
        for error, message, kind, name, configs in found
    ]
    rows = [
        codec.encode_result(
            version, error, message, kind, name, [codec.encode_setting(version, **each) for each in configs]
        )
        for error, message, kind, name, configs in found
    ]
    expected = messages.encode_response(ApiKey.DESCRIBE_CONFIGS, version, {"throttle_time": 0, "results": bodies})
    assert codec.encode_response(version, rows) == expected
