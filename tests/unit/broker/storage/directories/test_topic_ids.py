"""`partition.metadata`: what is written, read, and tolerated (KIP-516, FLT-27)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.directories import topic_ids
from protocol.topic_ids import topic_id_text

RANDOM_IDS = st.uuids(version=4).map(topic_id_text)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"version: 0\ntopic_id: qK2jlmhTQcuDVtQ7zJ_nNw\n", "qK2jlmhTQcuDVtQ7zJ_nNw"),
        (b"topic_id:qK2jlmhTQcuDVtQ7zJ_nNw", "qK2jlmhTQcuDVtQ7zJ_nNw"),
        (b"version: 0\ntopic_id: qK2jlmhTQcuDVtQ7zJ_nN", None),
        (b"version: 0\ntopic_id: qK2jlmhTQcuDVtQ7zJ/nNw", None),
        (b"version: 0\n", None),
        (b"\xff\x00", None),
        (b"", None),
    ],
)
def test_reading(data: bytes, found: str | None) -> None:
    assert topic_ids.decode(data) == found


@given(RANDOM_IDS, st.data())
def test_a_flipped_bit_does_not_change_the_topic(topic_id: str, data: st.DataObject) -> None:
    written = bytearray(topic_ids.encode(topic_id))
    bit = data.draw(st.integers(0, len(written) * 8 - 1))
    written[bit // 8] ^= 1 << bit % 8
    assert topic_ids.can_be(bytes(written), topic_id)


@given(st.integers(0, 43), st.sampled_from([b"", bytes(50)]), RANDOM_IDS)
def test_a_file_that_a_power_loss_cut_is_not_another_topics(kept: int, rest: bytes, topic_id: str) -> None:
    """The file is synced with the log's first flush."""
    assert topic_ids.can_be(topic_ids.encode(topic_id)[:kept] + rest, topic_id)


@given(RANDOM_IDS, RANDOM_IDS, st.integers(0, 20 * 8 - 1))
def test_another_topics_log_is_never_used(one: str, other: str, bit: int) -> None:
    """Not even when its file is damaged, too."""
    written = bytearray(topic_ids.encode(one))
    written[bit // 8] ^= 1 << bit % 8
    assert not topic_ids.can_be(topic_ids.encode(one), other)
    assert not topic_ids.can_be(bytes(written), other)


def test_two_wrong_bits_are_another_id() -> None:
    topic_id = topic_id_text(uuid.UUID(int=1))
    written = bytearray(topic_ids.encode(topic_id))
    written[30] ^= 3
    assert not topic_ids.can_be(bytes(written), topic_id)
