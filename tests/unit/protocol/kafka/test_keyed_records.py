"""Keys and values of a batch: the same as with the full decoder, and only KafkaError for broken bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.keyed_records import keyed_records
from protocol.kafka.record_batch import HEADER_SIZE, build_batch, decode_records

SIZES = (0, 1, 63, 64, 8191, 8192, 70_000)
"""Lengths at which the varint gets one more byte."""
SMALL = st.one_of(st.none(), st.binary(max_size=80))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
RECORDS = st.lists(st.tuples(SMALL, SMALL, HEADERS, st.integers(0, 2**45)), min_size=1, max_size=70)


@given(RECORDS)
def test_keys_and_values_are_those_of_the_full_decoder(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]],
) -> None:
    batch = build_batch(records)
    expected = [(record.key, record.value) for record in decode_records(batch)]
    assert list(keyed_records(batch[HEADER_SIZE:], len(records))) == expected


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", SIZES)
def test_lengths_with_varints_of_several_bytes(key: int, value: int) -> None:
    batch = build_batch([(b"k" * key, b"v" * value, (), 5), (b"", None, (), 2**40)])
    assert list(keyed_records(batch[HEADER_SIZE:], 2)) == [(b"k" * key, b"v" * value), (b"", None)]


def test_every_cut_is_refused() -> None:
    payload = build_batch([(b"key", b"value", (("h", b"x"),), 5)] * 3)[HEADER_SIZE:]
    for size in range(len(payload)):
        with pytest.raises(KafkaError) as told:
            list(keyed_records(payload[:size], 3))
        assert told.value.code is ErrorCode.CORRUPT_MESSAGE


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_records_or_a_kafka_error(payload: bytes, count: int) -> None:
    try:
        found = list(keyed_records(payload, count))
    except KafkaError:
        return
    assert len(found) == count
