"""`__transaction_state`: keys, values, a whole partition of it."""

from __future__ import annotations

from collections.abc import Iterator

from broker.transactions import records
from broker.transactions.records import TransactionsImage, UnreadableRecord
from broker.transactions.states import TransactionState
from broker.transactions.transaction import TransactionMetadata
from protocol.errors import KafkaError
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.fuzz.decoder import Decoder
from tests.fuzz.sealing import packed, partition_of

PARTITIONS = frozenset((TopicPartition("t", 0), TopicPartition("t", 7), TopicPartition("orders", 3)))
ONGOING = TransactionMetadata(5, 2, 60_000, TransactionState.ONGOING, PARTITIONS, 9, 8)
FLEXIBLE = bytes.fromhex(
    "0001000000000000000500020000ea60010302740300000000000000010002750200000007000000"
    "00000000000900000000000000080100080000000000000004"
)
"""Version 1, with tagged fields."""
KEYS = [records.encode_key("tx"), records.encode_key("ä"), b"\0\7\0\1g"]
VALUES = [
    records.encode_value(ONGOING),
    records.encode_value(ONGOING._replace(state=TransactionState.EMPTY)),
    records.encode_value(ONGOING._replace(state=TransactionState.COMPLETE_ABORT, partitions=frozenset())),
    FLEXIBLE,
]


def decoders() -> list[Decoder]:
    return [
        Decoder("transaction-key", _key, lambda: KEYS, (UnreadableRecord,), bytes_max=200),
        Decoder("transaction-value", _value, lambda: VALUES, (UnreadableRecord,)),
        Decoder("transactions-partition", _partition, _partitions, (KafkaError,), cpu_ms=30),
    ]


def _key(data: bytes) -> object:
    found = records.decode_key(data)
    assert records.encode_key(found) == data
    return found


def _value(data: bytes) -> object:
    found = records.decode_value(data)
    again = records.decode_value(records.encode_value(found, records.FLEXIBLE_VALUE))
    is_empty = found.state is TransactionState.EMPTY
    assert again == (found._replace(partitions=frozenset()) if is_empty else found)
    return found


def _partition(data: bytes) -> object:
    image = TransactionsImage()
    for _ in image.steps(memoryview(partition_of(data, build_batch))):
        pass
    return image.metadata


def _partitions() -> Iterator[bytes]:
    yield b"\1" + packed([part for key in KEYS for value in (*VALUES, b"") for part in (key, value)])
    rows = [(KEYS[0], VALUES[0], (), 1), (KEYS[1], VALUES[1], (), 1), (KEYS[0], None, (), 1)]
    for compression in range(5):
        yield b"\0" + packed([build_batch(rows, compression=compression)])
