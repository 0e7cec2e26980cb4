"""The records of `__transaction_state`: one for each transactional id, byte for byte as Kafka's. Pure.

    key    v0       transactional id (string)
    value  v0       producer id (int64), producer epoch (int16), transaction time-out (int32, ms), number of the state (int8),
                    partitions (nullable array of topic and int32 array; null in Empty), time of the last change (int64, ms),
                    start of the transaction (int64, ms, -1 without one); written
           v1       as v0, in compact strings and arrays and with tagged fields; read, not written (Kafka 4)

Each key and value starts with a version (int16). A record without a value is a tombstone: it removes the id. Records of other versions
are skipped, and stay in the log.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from broker.transactions.states import NUMBERS, TransactionState
from broker.transactions.transaction import TransactionMetadata
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import wire
from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.keyed_records import keyed_records
from protocol.kafka.record_batch import DECOMPRESSED_SIZE_MAX, iter_batches, unpacked
from protocol.types import Buffer, TopicPartition

KEY_VERSION = 0
VALUE_VERSION = 0
VALUE_VERSION_MAX = 1
"""The newest version that is read."""
BYTES_PER_STEP = 4_000
"""Bytes of values after which the caller may check the time: about half a millisecond. Each record counts as RECORD_BYTES more."""
RECORD_BYTES = 200
TRANSACTIONAL_ID_BYTES_MAX = wire.STRING_BYTES_MAX

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_RECORDED = {
    number: state
    for state, number in NUMBERS.items()
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
}
"""The states that a record can have, by number."""


class UnreadableRecord(Exception):
    """A key or value of another version, or whose fields do not fit its bytes."""


def encode_key(transactional_id: str) -> bytes:
    """Raises KafkaError(INVALID_REQUEST) for an id of more than 32,767 bytes."""
    return _SHORT.pack(KEY_VERSION) + _string(transactional_id)


def encode_value(metadata: TransactionMetadata) -> bytes:
    """Topics and partitions are sorted, so that equal metadata have equal bytes."""
    head = _HEAD.pack(
        VALUE_VERSION,
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.timeout_ms,
        NUMBERS[metadata.state],
    )
    times = _TIMES.pack(metadata.updated_ms, metadata.start_ms)
    if metadata.state is TransactionState.EMPTY:
        return head + _INT.pack(-1) + times
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(partition)
    parts = [head, _INT.pack(len(topics))]
    for topic, numbers in topics.items():
        parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    parts.append(times)
    return b"".join(parts)


def decode_key(key: bytes | None) -> str:
    """The transactional id. Raises UnreadableRecord."""
    try:
        (version,) = _SHORT.unpack_from(key or b"")
        if version != KEY_VERSION:
            raise UnreadableRecord(f"a key of version {version}")
        assert key is not None
        transactional_id, at = wire.read_string(key, _SHORT.size, False)
        _check_end(key, at)
    except (MalformedRequest, struct.error) as error:
        raise UnreadableRecord(f"a key: {error}") from None
    return transactional_id


def decode_value(value: bytes) -> TransactionMetadata:
    """Raises UnreadableRecord."""
    try:
        (version,) = _SHORT.unpack_from(value)
        if not 0 <= version <= VALUE_VERSION_MAX:
            raise UnreadableRecord(f"a value of version {version}")
        return _decode_value(value, is_flexible=version == VALUE_VERSION_MAX)
    except (MalformedRequest, struct.error) as error:
        raise UnreadableRecord(f"a value: {error}") from None


def _decode_value(value: bytes, *, is_flexible: bool) -> TransactionMetadata:
    _, producer_id, epoch, timeout_ms, number = _HEAD.unpack_from(value)
    state = _RECORDED.get(number)
    if state is None:
        raise UnreadableRecord(f"a value with the state {number}")
    count, at = wire.read_array_length(value, _HEAD.size, is_flexible, element_size_min=2)
    partitions = []
    for _ in range(count):
        topic, at = wire.read_string(value, at, is_flexible)
        number_of_partitions, at = wire.read_array_length(value, at, is_flexible, element_size_min=4)
        numbers = struct.unpack_from(f">{number_of_partitions}i", value, at)
        partitions += [TopicPartition(topic, partition) for partition in numbers]
        at += 4 * number_of_partitions
        at = skip_tagged_fields(value, at) if is_flexible else at
    updated_ms, start_ms = _TIMES.unpack_from(value, at)
    at += _TIMES.size
    _check_end(value, skip_tagged_fields(value, at) if is_flexible else at)
    return TransactionMetadata(producer_id, epoch, timeout_ms, state, frozenset(partitions), updated_ms, start_ms)


class TransactionsImage:
    """The transactional ids in one partition, as a read from start to end finds them: the last record of an id counts.

    `skipped` counts the records that could not be read, by reason.
    """

    def __init__(self) -> None:
        self.next_offset = 0
        self.skipped: Counter[str] = Counter()
        self.metadata: dict[str, TransactionMetadata] = {}

    def steps(self, records: Buffer) -> Iterator[None]:
        """Takes batches in the order of the log; an incomplete last one is ignored. `next_offset` is the offset after the others.

        Yields after a few records, so that the caller can pause. Raises KafkaError(CORRUPT_MESSAGE) for broken bytes.
        """
        taken = 0
        for position, header in iter_batches(records):
            data = unpacked(
                records, position, header, size_max=DECOMPRESSED_SIZE_MAX, too_large=ErrorCode.CORRUPT_MESSAGE
            )
            if not header.is_control:
                for key, value in keyed_records(data, header.record_count):
                    self._take(key, value)
                    taken += RECORD_BYTES + len(value or b"")
                    if taken >= BYTES_PER_STEP:
                        taken = 0
                        yield
            self.next_offset = header.next_offset

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            transactional_id = decode_key(key)
            if value is None:
                self.metadata.pop(transactional_id, None)
            else:
                self.metadata[transactional_id] = decode_value(value)
        except UnreadableRecord as error:
            self.skipped[str(error)] += 1


def _string(value: str) -> bytes:
    data = value.encode()
    if len(data) > TRANSACTIONAL_ID_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a string of {len(data)} bytes cannot be stored: the limit is {TRANSACTIONAL_ID_BYTES_MAX}",
        )
    return _SHORT.pack(len(data)) + data


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise MalformedRequest(f"{len(data) - at} bytes after its last field")
