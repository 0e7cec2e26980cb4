"""Kafka's producer snapshots: FMT-3, FLT-27, and which of them a log needs."""

from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c

from broker.storage.producers.producer_snapshots import (
    decode,
    encode,
    file_name,
    newest_first,
    offset_of,
    out_of_range,
    strays,
)
from broker.storage.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState

KAFKA_WROTE = bytes.fromhex(
    "0001398adde3000000020000000000000007000300000009000000000000000900000004"
    "00000000000007d0ffffffffffffffffffffffff00000000ee6b28000000000000000000"
    "00000000000c0000000200000000000005dcffffffffffffffffffffffff"
)
"""Kafka 3.9.1's 00000000000000000013.snapshot: producer 7 wrote 2 x 5 records in epoch 3, another 3 over the wrap."""


def some_state() -> ProducerState:
    batches = [BatchMetadata(9 + 10 * n, 109 + 10 * n, 9, 5000 + n) for n in range(5)]
    return ProducerState(
        200,
        {
            7: ProducerEntry(3, last_timestamp=5004, batches=batches),
            8: ProducerEntry(0, 12, 6000, 150, [BatchMetadata(0, 150, 0, 6000)]),
            9: ProducerEntry(1, 4, 7000),
        },
    )


def test_a_snapshot_that_kafka_wrote() -> None:
    state = decode(KAFKA_WROTE, 13)
    assert state.producers == {
        7: ProducerEntry(3, last_timestamp=2000, batches=[BatchMetadata(9, 9, 4, 2000)]),
        4_000_000_000: ProducerEntry(0, last_timestamp=1500, batches=[BatchMetadata(0, 12, 2, 1500)]),
    }
    assert state.producers[4_000_000_000].batches[0].first_sequence == 2**31 - 2
    assert encode(state) == KAFKA_WROTE


def test_all_kept_batches_survive_and_the_last_entry_of_a_producer_is_kafkas() -> None:
    state = some_state()
    data = encode(state)
    again = decode(data, 200)
    assert again.producers == state.producers
    assert again.end_offset == 200
    rows = list(struct.iter_unpack(">qhiqiqiq", data[10:]))
    last_of = {row[0]: row for row in rows}
    assert last_of == {
        7: (7, 3, 49, 149, 9, 5004, -1, -1),
        8: (8, 0, 0, 150, 0, 6000, 12, 150),
        9: (9, 1, -1, -1, 0, 7000, 4, -1),
    }


def test_a_later_entry_of_another_epoch_replaces_the_earlier() -> None:
    """As Kafka reads: one producer, the last entry wins."""
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 7, 3, 49, 149, 9, 5004, -1, -1)
    body += struct.pack(">qhiqiqiq", 7, 4, 0, 150, 0, 5005, -1, -1)
    producers = decode(struct.pack(">hI", 1, crc32c(body)) + body, 151).producers
    assert producers[7] == ProducerEntry(4, last_timestamp=5005, batches=[BatchMetadata(0, 150, 0, 5005)])


def test_every_cut_and_every_flipped_bit_is_refused() -> None:
    """FLT-27."""
    data = encode(some_state())
    for size in range(len(data)):
        with pytest.raises(ValueError):
            decode(data[:size], 200)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            decode(bytes(broken), 200)
    with pytest.raises(ValueError):
        decode(data + b"\x00", 200)


def test_a_snapshot_with_offsets_beyond_its_own_is_refused() -> None:
    """Its file was renamed, or belongs to another log."""
    with pytest.raises(ValueError):
        decode(encode(some_state()), 150)


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000042.snapshot", 42),
        ("42.snapshot", None),
        ("00000000000000000042.snapshot.deleted", None),
        ("00000000000000000042.log", None),
    ],
)
def test_file_names(name: str, offset: int | None) -> None:
    assert offset_of(name) == offset
    if offset is not None:
        assert file_name(offset) == name


def test_which_snapshots_a_log_can_use() -> None:
    """A snapshot at the start of the first segment has the producers of deleted records. One beyond the end has cut records."""
    offsets = [0, 10, 20, 30, 31]
    assert out_of_range(offsets, first_offset=10, log_end_offset=30) == [0, 31]
    assert newest_first(offsets, first_offset=10, log_end_offset=30) == [30, 20, 10]


@pytest.mark.parametrize(
    ("offsets", "bases", "expected"),
    [
        ([10, 20, 30], [0, 10, 20], []),  # the last is of a clean stop
        ([10, 15, 20, 25, 30], [0, 10, 20], [15, 25]),
        ([10, 15], [0, 10, 20], [15]),
        ([5], [], []),
        ([], [0], []),
    ],
)
def test_snapshots_without_a_segment_are_strays(offsets: list[int], bases: list[int], expected: list[int]) -> None:
    """Kafka's removeStraySnapshots."""
    assert strays(offsets, bases) == expected
