"""The sizes that are computed are those of the batches that `build_batch` writes."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.record_batch import HEADER_SIZE, build_batch
from tools.replay.traces.batch_sizes import (
    body_sizes,
    record_size,
    single_batch_sizes,
    varint_size,
    varint_sizes,
)

FIELD = st.none() | st.builds(bytes, st.integers(0, 9000))
RECORDS = st.lists(st.tuples(FIELD, FIELD, st.integers(0, 2**40)), min_size=1, max_size=80)


def sizes_of(fields: list[bytes | None]) -> numpy.ndarray:
    return numpy.array([-1 if field is None else len(field) for field in fields], numpy.int64)


@given(RECORDS)
def test_a_batch(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    bodies = body_sizes(sizes_of([key for key, _, _ in records]), sizes_of([value for _, value, _ in records]))
    first_ms = records[0][2]
    size = HEADER_SIZE + sum(
        record_size(int(body), time_ms - first_ms, offset)
        for offset, (body, (_, _, time_ms)) in enumerate(zip(bodies, records, strict=True))
    )
    assert size == len(build_batch([(key, value, (), time_ms) for key, value, time_ms in records]))
    assert single_batch_sizes(bodies).tolist() == [len(build_batch([(key, value, (), 0)])) for key, value, _ in records]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_many_varints_are_as_one(numbers: list[int]) -> None:
    assert varint_sizes(numpy.array(numbers, numpy.int64)).tolist() == [varint_size(number) for number in numbers]
