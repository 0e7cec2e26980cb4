"""Stamped batches: every record is recognised again, and damage is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.kafka.compression import decompress
from protocol.kafka.record_batch import HEADER_SIZE, crc_is_valid, decode_records, parse_header
from tools.replay.load import stamps
from tools.replay.load.stamps import STAMP_SIZE, build, checksum, checksums, read

RUN = 77


def batch(records: int = 20, size: int = 3000, first_sequence: int = 5, compression: int = 0) -> bytes:
    return build(
        records,
        size,
        run=RUN,
        producer=3,
        first_sequence=first_sequence,
        timestamp_ms=1_700_000_000_000,
        compression=compression,
    )


@given(
    records=st.integers(1, 300),
    size=st.integers(0, 20_000),
    first_sequence=st.integers(0, 2**40),
    compression=st.sampled_from([0, 1, 2, 3, 4]),
)
def test_what_was_built_is_read(records: int, size: int, first_sequence: int, compression: int) -> None:
    data = batch(records, size, first_sequence, compression)
    header = parse_header(data)
    assert crc_is_valid(data, 0, header)
    assert len(decode_records(data, 0)) == records
    for found in (read(data, 0, header, RUN), stamps._read_each(data, 0, header, RUN)):
        assert found.sequences.tolist() == list(range(first_sequence, first_sequence + records))
        assert found.producers.tolist() == [3] * records
        assert found.offset_deltas.tolist() == list(range(records))
        assert (found.foreign, found.corrupt) == (0, [])


@given(records=st.integers(1, 300), size=st.integers(0, 100_000))
def test_a_batch_has_the_size_that_was_asked_for(records: int, size: int) -> None:
    """Up to the bytes by which the length of a number changes; or as small as its stamps allow."""
    data = batch(records, size)
    least = HEADER_SIZE + records * (STAMP_SIZE + 6)
    assert len(data) <= max(size, least + 3 * records)
    assert len(data) >= min(size - 3 * records, len(data))


def test_batches_of_many_sizes_take_bounded_memory() -> None:
    for step in range(60):
        batch(1 + step * 30, 40_000 * (step + 1))
    assert sum(template.bytes_used for template in stamps._templates.values()) <= stamps.TEMPLATES_BYTES_MAX
    assert len(stamps._templates) > 10


@given(
    records=st.integers(1, 40),
    size=st.integers(0, 9000),
    key_size=st.integers(0, 20),
    keys=st.integers(1, 3),
    compression=st.sampled_from([0, 4]),
)
def test_records_have_keys_that_are_equal_as_their_hashes_are(
    records: int, size: int, key_size: int, keys: int, compression: int
) -> None:
    hashes = [2**62 + at % keys for at in range(records)]
    data = build(
        records,
        size,
        run=RUN,
        producer=3,
        first_sequence=5,
        timestamp_ms=0,
        compression=compression,
        key_size=key_size,
        keys=hashes,
    )
    found = [record.key for record in decode_records(data, 0)]
    assert {len(key or b"") for key in found} == {key_size}
    assert len(set(found)) == (min(records, keys) if key_size else 1)
    assert [key == found[0] for key in found] == [each == hashes[0] or not key_size for each in hashes]
    newest = stamps.newest_of_keys(data, 0)
    assert newest.keys() == {(key_size, each & ((1 << 8 * key_size) - 1) if key_size < 8 else each) for each in hashes}
    assert sorted(newest.values()) == sorted({records - 1 - found[::-1].index(key) for key in found})
    payload = decompress(data[HEADER_SIZE:], compression, 1 << 30, ErrorCode.CORRUPT_MESSAGE)
    for stamped in (stamps._read_intact(payload, records, RUN), stamps._read_each(data, 0, parse_header(data), RUN)):
        assert stamped is not None or len(data) < size  # a number whose length changed: read record by record
        assert stamped is None or stamped.sequences.tolist() == list(range(5, 5 + records))
    shared = build(records, size, run=RUN, producer=3, first_sequence=5, timestamp_ms=0, key_size=key_size, keys=[7])
    assert len({record.key for record in decode_records(shared, 0)}) == 1


@given(at=st.integers(0, 2**32), bit=st.integers(0, 7))
def test_a_changed_bit_of_a_value_is_found(at: int, bit: int) -> None:
    records = 20
    data = bytearray(batch(records))
    header = parse_header(data)
    values = [record.value or b"" for record in decode_records(bytes(data), 0)]
    value = values[at % records]
    place = data.index(value) + at // records % len(value)
    data[place] ^= 1 << bit
    found = read(data, 0, header, RUN)
    assert len(found.sequences) == records - 1
    assert found.foreign + len(found.corrupt) == 1


def test_records_of_others_are_foreign() -> None:
    data = batch()
    found = read(data, 0, parse_header(data), RUN + 1)
    assert (found.foreign, len(found.sequences), found.corrupt) == (20, 0, [])


@pytest.mark.parametrize("values", [(0, 0, 0, 0), (2**32 - 1, 2**32 - 1, 2**63, 2**32 - 1), (1, 2, 3, 4)])
def test_the_checksum_is_the_same_for_numbers_and_arrays(values: tuple[int, int, int, int]) -> None:
    import numpy

    run, producer, sequence, filler = values
    array = checksums(run, producer, numpy.array([sequence], numpy.uint64), numpy.array([filler], numpy.uint64))
    assert int(array[0]) == checksum(run, producer, sequence, filler)
