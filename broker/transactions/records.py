"""The records of `__transaction_state`: one for each transactional id, byte for byte as Kafka's. Pure.

    key    v0       transactional id (string)
    value  v0       producer id (int64), producer epoch (int16), transaction time-out (int32, ms), number of the state (int8),
                    partitions (nullable array of topic and int32 array; null in Empty), time of the last change (int64, ms),
                    start of the transaction (int64, ms, -1 without one); written
           v1       as v0, in compact strings and arrays, and with tagged fields, each written only if it says something: 0, the producer id
                    before the last change (int64), if it was another one; 1, the next producer id (int64); 2, the client's transaction
                    version (int16)

Kafka 4.1 leaves out 0 and 1, and its next coordinator does not know that a producer has another id. Later versions of Kafka write them.

v1 is written from `transaction.version` 1 on (`broker.api.level=4`, as Kafka 4 does), and read at every level, as by Kafka 3.9.

Each key and value starts with a version (int16). A record without a value is a tombstone: it removes the id. Records of other versions
are skipped, and stay in the log.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from broker.transactions.states import NUMBERS, TransactionState, TransactionVersion
from broker.transactions.transaction import NO_PRODUCER_ID, TransactionMetadata
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import wire
from protocol.kafka.framing import (
    MalformedRequest,
    read_tag,
    read_tag_count,
    skip_tagged_fields,
    unsigned_varint,
)
from protocol.kafka.keyed_records import keyed_records
from protocol.kafka.record_batch import DECOMPRESSED_SIZE_MAX, iter_batches, unpacked
from protocol.types import Buffer, TopicPartition

KEY_VERSION = 0
PLAIN_VALUE, FLEXIBLE_VALUE = 0, 1
"""The versions of values."""
BYTES_PER_STEP = 4_000
"""Bytes of values after which the caller may check the time: about half a millisecond. Each record counts as RECORD_BYTES more."""
RECORD_BYTES = 200
TRANSACTIONAL_ID_BYTES_MAX = wire.STRING_BYTES_MAX

PREVIOUS_ID_TAG, NEXT_ID_TAG, CLIENT_VERSION_TAG = 0, 1, 2
NO_TAGS = b"\0"

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
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


def encode_value(metadata: TransactionMetadata, version: int = PLAIN_VALUE) -> bytes:
    """Topics and partitions are sorted, so that equal metadata have equal bytes."""
    head = _HEAD.pack(
        version,
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.timeout_ms,
        NUMBERS[metadata.state],
    )
    topics: dict[str, list[int]] | None = None
    if metadata.state is not TransactionState.EMPTY:
        topics = {}
        for topic, partition in sorted(metadata.partitions):
            topics.setdefault(topic, []).append(partition)
    times = _TIMES.pack(metadata.updated_ms, metadata.start_ms)
    if version == PLAIN_VALUE:
        return b"".join((head, *_plain_topics(topics), times))
    return b"".join((head, *_compact_topics(topics), times, _tags(metadata)))


def _plain_topics(topics: Mapping[str, Sequence[int]] | None) -> Iterator[bytes]:
    yield _INT.pack(-1 if topics is None else len(topics))
    for topic, numbers in (topics or {}).items():
        yield _string(topic)
        yield struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


def _compact_topics(topics: Mapping[str, Sequence[int]] | None) -> Iterator[bytes]:
    yield unsigned_varint(0 if topics is None else len(topics) + 1)
    for topic, numbers in (topics or {}).items():
        name = topic.encode()
        yield unsigned_varint(len(name) + 1)
        yield name
        yield unsigned_varint(len(numbers) + 1)
        yield struct.pack(f">{len(numbers)}i", *numbers)
        yield NO_TAGS


def _tags(metadata: TransactionMetadata) -> bytes:
    """The tagged fields that say something."""
    is_other_id = metadata.previous_producer_id not in (NO_PRODUCER_ID, metadata.producer_id)
    fields = [
        (PREVIOUS_ID_TAG, _LONG.pack(metadata.previous_producer_id), is_other_id),
        (NEXT_ID_TAG, _LONG.pack(metadata.next_producer_id), metadata.next_producer_id != NO_PRODUCER_ID),
        (CLIENT_VERSION_TAG, _SHORT.pack(metadata.client_version), metadata.client_version != TransactionVersion.TV_0),
    ]
    present = [(tag, data) for tag, data, is_present in fields if is_present]
    parts = [unsigned_varint(len(present))]
    for tag, data in present:
        parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
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
        if version not in (PLAIN_VALUE, FLEXIBLE_VALUE):
            raise UnreadableRecord(f"a value of version {version}")
        return _decode_value(value, is_flexible=version == FLEXIBLE_VALUE)
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
    metadata = TransactionMetadata(producer_id, epoch, timeout_ms, state, frozenset(partitions), updated_ms, start_ms)
    at += _TIMES.size
    if is_flexible:
        metadata, at = _with_tags(metadata, value, at)
    _check_end(value, at)
    return metadata


def _with_tags(metadata: TransactionMetadata, value: bytes, at: int) -> tuple[TransactionMetadata, int]:
    """The metadata with the tagged fields at `at`, and the offset after them. Unknown fields are skipped."""
    count, at = read_tag_count(value, at)
    tag = -1
    for _ in range(count):
        tag, begin, at = read_tag(value, at, tag)
        size = at - begin
        if tag == PREVIOUS_ID_TAG and size == _LONG.size:
            metadata = metadata._replace(previous_producer_id=_LONG.unpack_from(value, begin)[0])
        elif tag == NEXT_ID_TAG and size == _LONG.size:
            metadata = metadata._replace(next_producer_id=_LONG.unpack_from(value, begin)[0])
        elif tag == CLIENT_VERSION_TAG and size == _SHORT.size:
            metadata = metadata._replace(client_version=_client_version(_SHORT.unpack_from(value, begin)[0]))
        elif tag <= CLIENT_VERSION_TAG:
            raise UnreadableRecord(f"a value with {size} bytes in its tagged field {tag}")
    return metadata, at


def _client_version(number: int) -> TransactionVersion:
    """A newer version than is known counts as the newest that is: it raises the epoch, too."""
    return TransactionVersion(min(max(number, 0), TransactionVersion.TV_2))


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
