"""The records of `__transaction_state`, as Kafka writes them (TXN-1, FMT-3)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transactions.records import (
    FLEXIBLE_VALUE,
    TransactionsImage,
    UnreadableRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker.transactions.states import NUMBERS, TransactionState, TransactionVersion
from broker.transactions.transaction import TransactionMetadata
from protocol.errors import KafkaError
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition

S = TransactionState
ONGOING = TransactionMetadata(
    5, 2, 60_000, S.ONGOING, frozenset((TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("u", 7))), 9, 8
)
ONGOING_HEX = (
    "0000" "0000000000000005" "0002" "0000ea60" "01"
    "00000002" "0001" "74" "00000002" "00000000" "00000001" "0001" "75" "00000001" "00000007"
    "0000000000000009" "0000000000000008"
)  # fmt: skip
EMPTY_HEX = "0000000000000000000500000000ea6000ffffffff0000000000000009ffffffffffffffff"


def test_bytes_of_kafka() -> None:
    assert encode_key("tx") == bytes.fromhex("000000027478")
    assert encode_value(ONGOING).hex() == ONGOING_HEX
    assert encode_value(TransactionMetadata(5, 0, 60_000, S.EMPTY, updated_ms=9)).hex() == EMPTY_HEX
    assert [NUMBERS[state] for state in S] == list(range(8))


FLEXIBLE = ONGOING._replace(previous_producer_id=4, next_producer_id=6, client_version=TransactionVersion.TV_2)
FLEXIBLE_HEX = (
    "0001" "0000000000000005" "0002" "0000ea60" "01"
    "03" "02" "74" "03" "00000000" "00000001" "00" "02" "75" "02" "00000007" "00"
    "0000000000000009" "0000000000000008"
)  # fmt: skip
TAGS_HEX = "03" "00" "08" "0000000000000004" "01" "08" "0000000000000006" "02" "02" "0002"  # fmt: skip


def test_the_flexible_version_of_kafka_4() -> None:
    """KIP-890, KIP-915: tagged fields that have no value are left out, and unknown ones are skipped."""
    assert encode_value(FLEXIBLE, FLEXIBLE_VALUE).hex() == FLEXIBLE_HEX + TAGS_HEX
    assert decode_value(bytes.fromhex(FLEXIBLE_HEX + TAGS_HEX)) == FLEXIBLE
    assert encode_value(ONGOING, FLEXIBLE_VALUE).hex() == FLEXIBLE_HEX + "00"
    assert encode_value(ONGOING._replace(previous_producer_id=5), FLEXIBLE_VALUE).hex() == FLEXIBLE_HEX + "00"
    assert decode_value(bytes.fromhex(FLEXIBLE_HEX + "0103020007")) == ONGOING
    assert decode_value(bytes.fromhex(FLEXIBLE_HEX + "0102020007")).client_version is TransactionVersion.TV_2
    with pytest.raises(UnreadableRecord, match="2 bytes in its tagged field 1"):
        decode_value(bytes.fromhex(FLEXIBLE_HEX + "0101020007"))


IDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(("a", "b", "topic.c")), st.integers(0, 2**31 - 1)), max_size=8
)


@given(
    IDS,
    st.sampled_from([s for s in S if s not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]),
    PARTITIONS,
    st.integers(0, 2**62),
    st.integers(0, 2**15 - 1),
    st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**62), st.sampled_from(TransactionVersion)),
)
def test_what_is_written_is_read(
    transactional_id: str,
    state: TransactionState,
    partitions: frozenset[TopicPartition],
    number: int,
    epoch: int,
    tagged: tuple[int, int, TransactionVersion],
) -> None:
    metadata = TransactionMetadata(number, epoch, 5, state, frozenset() if state is S.EMPTY else partitions, 4, 3)
    assert decode_key(encode_key(transactional_id)) == transactional_id
    assert decode_value(encode_value(metadata)) == metadata
    previous_id, next_id, version = tagged
    more = metadata._replace(previous_producer_id=previous_id, next_producer_id=next_id, client_version=version)
    same_id = previous_id == number
    assert decode_value(encode_value(more, FLEXIBLE_VALUE)) == (
        more._replace(previous_producer_id=-1) if same_id else more
    )


@given(st.binary(max_size=80))
def test_broken_bytes_are_unreadable(data: bytes) -> None:
    for decode in (decode_key, decode_value):
        try:
            decode(data)
        except UnreadableRecord:
            continue


@pytest.mark.parametrize("number", [-1, 6, 7, 8])
def test_states_that_are_never_recorded(number: int) -> None:
    value = bytearray(encode_value(ONGOING))
    value[16] = number & 0xFF
    with pytest.raises(UnreadableRecord, match="state"):
        decode_value(bytes(value))


def test_ids_that_are_too_long() -> None:
    with pytest.raises(KafkaError, match="32767"):
        encode_key("x" * 32_768)


def test_the_last_record_of_an_id_counts() -> None:
    def batch(offset: int, *records: tuple[bytes | None, bytes | None]) -> bytes:
        return build_batch([(key, value, (), 1) for key, value in records], base_offset=offset)

    later = ONGOING._replace(state=S.PREPARE_COMMIT)
    image = TransactionsImage()
    log = batch(
        0, (encode_key("a"), encode_value(ONGOING)), (encode_key("b"), encode_value(ONGOING)), (None, b"")
    ) + batch(3, (encode_key("a"), encode_value(later)), (encode_key("b"), None), (struct.pack(">h", 9), b"x"))
    for _ in image.steps(memoryview(log)):
        pass
    assert (image.metadata, image.next_offset, image.skipped.total()) == ({"a": later}, 6, 2)
