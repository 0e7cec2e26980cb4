"""Hashes of keys as Kafka's clients compute them."""

from __future__ import annotations

import zlib

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.traces.key_hashes import key_hashes, murmur2


def by_the_book(key: bytes) -> int:
    """Kafka's `Utils.murmur2`, line by line."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    found = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        found = (found * factor & mask) ^ word
    rest = key[whole:]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return found ^ found >> 15


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_examples_of_kafkas_own_test(key: bytes, expected: int) -> None:
    assert by_the_book(key) == expected % 2**32
    assert murmur2(pyarrow.array([key], pyarrow.large_binary())).tolist() == [expected % 2**32]


@given(st.lists(st.none() | st.binary(max_size=40)))
def test_keys_of_all_lengths(keys: list[bytes | None]) -> None:
    array = pyarrow.array([b"before", *keys], pyarrow.binary()).slice(1)
    assert key_hashes(array, "murmur2").to_pylist() == [
        None if key is None else by_the_book(key) & 0x7FFFFFFF for key in keys
    ]
    assert key_hashes(array, "crc32").to_pylist() == [zlib.crc32(key) if key else None for key in keys]
