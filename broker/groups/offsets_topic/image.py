"""The groups and offsets in one partition of `__consumer_offsets`, as a read from start to end finds them. Pure.

The last record of a key counts; a tombstone removes the key. Offsets of a transaction count when its commit marker is read. Without
a marker they are pending, and each group gets its own of them. Records of an unknown version are skipped and counted; they stay in the log.

A million offsets are read in about four seconds, so the work per offset is short. All offsets of a group in a topic have the same
key bytes before the partition number. These bytes are the key to the `Slot` of the offsets; they are not decoded each time.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from broker.groups.group.messages import GroupMetadata
from broker.groups.group.offsets import GroupOffsets
from broker.groups.group.transactional_offsets import StoredOffset
from broker.groups.offsets_topic.records import (
    GroupKey,
    OffsetKey,
    UnknownValueVersion,
    UnreadableRecord,
    decode_group_value,
    decode_key,
    offset_fields,
)
from protocol.errors import ErrorCode
from protocol.kafka.control_records import ABORT, COMMIT
from protocol.kafka.keyed_records import keyed_records
from protocol.kafka.record_batch import DECOMPRESSED_SIZE_MAX, BatchHeader, Buffer, iter_batches, unpacked
from protocol.types import TopicPartition

RECORDS_PER_STEP = 50
"""Records after which the caller may check the time."""

_MARKER = struct.Struct(">hh")
_PARTITION = struct.Struct(">i")

Slot = dict[int, StoredOffset]
"""Partition -> offset, of one group in one topic."""
TransactionalOffset = tuple[Slot, int, StoredOffset]
"""The slot, the partition, and the offset."""


class OffsetsImage:
    """`steps` and then `finishing` fill the image, then `groups` yields its groups. `skipped` counts the skipped records by kind.

    `first_errors` says why the first record of each kind could not be read.
    """

    def __init__(self) -> None:
        self.next_offset = 0
        self.skipped: Counter[str] = Counter()
        self.first_errors: dict[str, str] = {}
        self._metadata: dict[str, GroupMetadata] = {}
        self._offsets: dict[str, GroupOffsets] = {}
        self._slots: dict[bytes, Slot] = {}
        self._owners: dict[int, tuple[GroupOffsets, str]] = {}
        """id of a slot -> its group's offsets, its topic."""
        self._open: dict[int, dict[tuple[int, int], TransactionalOffset]] = {}
        """Producer -> the offsets of its transaction, by id of the slot, and partition."""
        self._tombstones: dict[tuple[int, int], int] = {}
        """Log offset of the partition's last tombstone, while transactions are open: it counts against offsets before it."""

    @property
    def open_transactions(self) -> int:
        """Number of producers with offsets whose transaction has no marker."""
        return len(self._open)

    # -- reading --------------------------------------------------------------------------------------------------

    def steps(self, records: Buffer) -> Iterator[None]:
        """Takes batches in the order of the log; an incomplete last one is ignored. `next_offset` is the offset after the others.

        Yields every few records, so that the caller can pause. Raises KafkaError(CORRUPT_MESSAGE) for broken bytes.
        """
        taken = 0
        for position, header in iter_batches(records):
            data = unpacked(
                records, position, header, size_max=DECOMPRESSED_SIZE_MAX, too_large=ErrorCode.CORRUPT_MESSAGE
            )
            if header.is_control:
                yield from self._end_transaction(header, data)
            elif header.is_transactional:
                yield from self._take_transactional(header, data)
            else:
                base = header.base_offset
                for key, value in keyed_records(data, header.record_count):
                    self._take(base, key, value)
                    taken += 1
                    if taken >= RECORDS_PER_STEP:
                        taken = 0
                        yield
            self.next_offset = header.next_offset

    def _take(self, base: int, key: bytes | None, value: bytes | None) -> None:
        slot = self._slots.get(key[:-4]) if key is not None else None
        if slot is None:
            slot = self._slot_of(key, value)
            if slot is None:
                return
        assert key is not None
        (partition,) = _PARTITION.unpack_from(key, len(key) - 4)
        if value is None:
            slot.pop(partition, None)
            if self._open:
                self._tombstones[(id(slot), partition)] = base
            return
        try:
            slot[partition] = (base, *offset_fields(value))
        except (UnknownValueVersion, UnreadableRecord) as error:
            self._skip_value("committed offsets", error)

    def _slot_of(self, key: bytes | None, value: bytes | None) -> Slot | None:
        """The slot for a key whose start is not in `_slots` yet. None: the record is not an offset; it is taken or skipped here."""
        try:
            decoded = decode_key(key)
            if isinstance(decoded, GroupKey):
                self._take_group(decoded.group_id, value)
            elif isinstance(decoded, OffsetKey):
                assert key is not None
                offsets = self._offsets.get(decoded.group_id)
                if offsets is None:
                    offsets = self._offsets[decoded.group_id] = GroupOffsets()
                slot = self._slots[key[:-4]] = offsets.of_topic(decoded.topic)
                self._owners[id(slot)] = offsets, decoded.topic
                return slot
            else:
                self._skip(f"keys of version {decoded.version}" if decoded.version >= 0 else "records without a key")
        except UnreadableRecord as error:
            self._skip("keys that cannot be read", error)
        return None

    def _take_group(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self._metadata.pop(group_id, None)
            return
        try:
            self._metadata[group_id] = decode_group_value(value)
        except (UnknownValueVersion, UnreadableRecord) as error:
            self._skip_value("groups", error)

    def _skip_value(self, what: str, error: UnknownValueVersion | UnreadableRecord) -> None:
        if isinstance(error, UnknownValueVersion):
            self._skip(f"{what} of version {error.version}")
        else:
            self._skip(f"{what} that cannot be read", error)

    def _skip(self, what: str, error: UnreadableRecord | None = None) -> None:
        self.skipped[what] += 1
        if error is not None:
            self.first_errors.setdefault(what, str(error))

    # -- transactions ---------------------------------------------------------------------------------------------

    def _take_transactional(self, header: BatchHeader, data: bytes) -> Iterator[None]:
        """Keeps the offsets apart until the marker. Only offsets are committed in transactions.

        A batch without records opens no transaction: compaction keeps it for its sequence number, and may have removed the marker.
        """
        for number, (key, value) in enumerate(keyed_records(data, header.record_count), 1):
            slot = self._slots.get(key[:-4]) if key is not None else None
            slot = self._slot_of(key, value) if slot is None else slot
            if slot is None or key is None:
                continue
            (partition,) = _PARTITION.unpack_from(key, len(key) - 4)
            at = (id(slot), partition)
            pending = self._open.setdefault(header.producer_id, {})
            try:
                if value is None:
                    pending.pop(at, None)
                else:
                    pending[at] = (slot, partition, (header.base_offset, *offset_fields(value)))
            except (UnknownValueVersion, UnreadableRecord) as error:
                self._skip_value("committed offsets", error)
            if number % RECORDS_PER_STEP == 0:
                yield

    def _end_transaction(self, header: BatchHeader, data: bytes) -> Iterator[None]:
        """The marker's record may be missing: compaction removes it when nothing of its transaction is left."""
        kinds = [
            _MARKER.unpack_from(key)[1]
            for key, _ in keyed_records(data, header.record_count)
            if key is not None and len(key) >= _MARKER.size
        ]
        if not kinds or kinds[0] not in (ABORT, COMMIT):
            return
        pending = self._open.pop(header.producer_id, {})
        for number, (at, (slot, partition, stored)) in enumerate(pending.items(), 1):
            current = slot.get(partition)
            if kinds[0] == COMMIT and self._counts(at, stored) and (current is None or current[0] < stored[0]):
                slot[partition] = stored
            if number % RECORDS_PER_STEP == 0:
                yield
        if not self._open:
            self._tombstones.clear()

    def _counts(self, at: tuple[int, int], stored: StoredOffset) -> bool:
        """False if a tombstone follows the offset in the log."""
        return stored[0] > self._tombstones.get(at, -1)

    def finishing(self) -> Iterator[None]:
        """Gives the offsets of open transactions to their groups (`GroupOffsets.transactional`), in steps. Called once, at the end."""
        for producer_id, pending in self._open.items():
            for number, (at, (_, partition, stored)) in enumerate(pending.items(), 1):
                if self._counts(at, stored):
                    offsets, topic = self._owners[at[0]]
                    offsets.transactional.add(producer_id, TopicPartition(topic, partition), stored)
                if number % RECORDS_PER_STEP == 0:
                    yield

    # -- giving out -----------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[tuple[str, GroupMetadata | None, GroupOffsets]]:
        """Each group that has a record or offsets: its id, its record (None: only offsets), its offsets."""
        for group_id, offsets in self._offsets.items():
            offsets.loaded()
            metadata = self._metadata.pop(group_id, None)
            if metadata is not None or not offsets.is_empty:
                yield group_id, metadata, offsets
        for group_id, metadata in self._metadata.items():
            yield group_id, metadata, GroupOffsets()
