"""Kafka's checkpoint texts (LOG-3): exact bytes, and a broken file is told from a good one (FLT-27)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage import checkpoints
from protocol.types import TopicPartition
from tools.sim.world.disk import MemoryDisk

OFFSETS = {TopicPartition("orders", 0): 1234, TopicPartition("a.b_c-d", 12): 0}
TEXT = b"0\n2\norders 0 1234\na.b_c-d 12 0\n"


def test_text_is_kafkas() -> None:
    assert checkpoints.encode_offsets(OFFSETS) == TEXT
    assert checkpoints.decode_offsets(TEXT) == OFFSETS
    assert checkpoints.encode_offsets({}) == b"0\n0\n"
    assert checkpoints.encode_epochs([(0, 0), (3, 1200)]) == b"0\n2\n0 0\n3 1200\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 40,
        b"1\n0\n",
        b"0\n",
        b"0\nx\n",
        b"0\n1\n",
        b"0\n0\norders 0 1\n",
        b"0\n1\norders 0 12",
        b"0\n1\norders 0\n",
        b"0\n1\norders 0 -1\n",
        b"0\n1\norders 0 1_0\n",
        b"0\n1\norders 0 +1\n",
        b"0\n1\norders  0 1\n",
        b"0\n1\norders 0 99999999999999999999\n",
        "0\n1\norders 0 \u0661\n".encode(),
        b"0\n1\norders\xff 0 1\n",
    ],
)
def test_a_broken_checkpoint_of_offsets_counts_as_empty_with_a_warning(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError):
        checkpoints.decode_offsets(data)
    disk = MemoryDisk()
    disk.write_atomically("/c", data)
    assert checkpoints.read_offsets(disk, "/c") == {}
    assert "/c is broken" in caplog.text


def test_an_empty_checkpoint_of_offsets_is_not_broken(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    disk.write_atomically("/c", b"")
    assert checkpoints.read_offsets(disk, "/c") == {}
    assert caplog.text == ""


@pytest.mark.parametrize(
    "data", [b"0\n2\n1 0\n1 5\n", b"0\n2\n1 5\n2 4\n", b"0\n1\n1 0 0\n", b"0\n1\n-1 0\n", b"0\n1\n1 10"]
)
def test_a_broken_checkpoint_of_epochs_counts_as_missing(disk: MemoryDisk, data: bytes) -> None:
    disk.write_atomically("/c", data)
    assert checkpoints.read_epochs(disk, "/c") is None


@given(st.integers(0, len(TEXT) - 1))
def test_a_torn_file_is_never_read_in_part(size: int) -> None:
    with pytest.raises(ValueError):
        checkpoints.decode_offsets(TEXT[:size])
