"""Sizes of record batches, from the sizes of the keys and values in them. Pure.

`protocol.kafka.record_batch.build_batch` writes what is counted here: records without headers, not compressed. All sizes are in bytes;
-1 is the size of a null key or value.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from protocol.kafka.record_batch import HEADER_SIZE

Numbers = NDArray[numpy.int64]

_FIXED = 2
"""The attributes, and the number of headers."""


def body_sizes(key_sizes: Numbers, value_sizes: Numbers) -> Numbers:
    """What records need without their deltas and without their own length."""
    sizes: Numbers = _FIXED + _field_sizes(key_sizes) + _field_sizes(value_sizes)
    return sizes


def record_size(body_size: int, timestamp_delta_ms: int, offset_delta: int) -> int:
    """The size of a record within its batch."""
    size = body_size + varint_size(timestamp_delta_ms) + varint_size(offset_delta)
    return varint_size(size) + size


def single_batch_sizes(body_sizes: Numbers) -> Numbers:
    """The sizes of batches of one record each."""
    sizes = body_sizes + 2 * varint_size(0)
    batches: Numbers = HEADER_SIZE + varint_sizes(sizes) + sizes
    return batches


def varint_size(number: int) -> int:
    """The size of a number of 64 bits in zigzag, base 128."""
    return (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7 or 1


def varint_sizes(numbers: Numbers) -> Numbers:
    """`varint_size` of each number."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(numpy.uint64)
    sizes = numpy.ones(len(numbers), numpy.int64)
    for bits in range(7, 64, 7):
        sizes += zigzag >= numpy.uint64(1 << bits)
    return sizes


def _field_sizes(sizes: Numbers) -> Numbers:
    return varint_sizes(sizes) + numpy.maximum(sizes, 0)
