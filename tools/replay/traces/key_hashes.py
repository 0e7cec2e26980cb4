"""The hash of a key, from which Kafka's clients compute its partition: hash modulo the number of partitions. Pure.

- `murmur2`: Java's default, also librdkafka's `murmur2_random`. The hash is made positive: its highest bit is cleared.
- `crc32`: librdkafka's default, `consistent_random`. An empty key is treated as null there.
"""

from __future__ import annotations

import zlib

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

_SEED = 0x9747B28C
_FACTOR = numpy.uint32(0x5BD1E995)


def key_hashes(keys: pyarrow.Array, partitioner: str) -> pyarrow.Array:
    """The hash of each key, int64; null for a null key. `keys`: binary, or text, whose UTF-8 is hashed."""
    if pyarrow.types.is_dictionary(keys.type):
        unique, places = keys.dictionary, keys.indices
    else:
        encoded = keys.dictionary_encode()
        unique, places = encoded.dictionary, encoded.indices
    unique = unique.cast(pyarrow.large_binary())
    if partitioner == "murmur2":
        hashes = pyarrow.array((murmur2(unique) & 0x7FFFFFFF).astype(numpy.int64))
    else:
        hashes = pyarrow.array([zlib.crc32(key) if key else None for key in unique.to_pylist()], pyarrow.int64())
    return hashes.take(places)


def mean_key_size(size: int, keys: int) -> int:
    """The size that all keys of a topic get, from the size of all together: keys with the same hash must be equal, and so have one size."""
    return max(round(size / keys), 1) if size else 0  # different keys stay different


def murmur2(keys: pyarrow.Array) -> NDArray[numpy.uint32]:
    """Kafka's 32-bit murmur2 of each key. `keys`: large_binary without nulls."""
    offsets = numpy.frombuffer(keys.buffers()[1], numpy.int64)[keys.offset : keys.offset + len(keys) + 1]
    data = numpy.frombuffer(keys.buffers()[2] or b"", numpy.uint8)
    sizes = offsets[1:] - offsets[:-1]
    hashes = numpy.zeros(len(keys), numpy.uint32)
    for size in numpy.unique(sizes):
        chosen = numpy.flatnonzero(sizes == size)
        hashes[chosen] = _murmur2_of_rows(data[offsets[chosen, None] + numpy.arange(size)])
    return hashes


def _murmur2_of_rows(keys: NDArray[numpy.uint8]) -> NDArray[numpy.uint32]:
    """`keys` has a row for each key; all have the same length."""
    count, size = keys.shape
    words = numpy.ascontiguousarray(keys[:, : size // 4 * 4]).view("<u4").astype(numpy.uint32)
    hashes = numpy.full(count, _SEED ^ size, numpy.uint32)
    for column in range(size // 4):
        word = words[:, column] * _FACTOR
        word ^= word >> 24
        hashes = hashes * _FACTOR ^ word * _FACTOR
    rest = keys[:, size // 4 * 4 :].astype(numpy.uint32)
    if rest.shape[1]:
        for place in range(rest.shape[1]):
            hashes ^= rest[:, place] << numpy.uint32(8 * place)
        hashes *= _FACTOR
    hashes ^= hashes >> 13
    hashes *= _FACTOR
    hashes ^= hashes >> 15
    return hashes
