"""The groups and offsets in one partition of `__consumer_offsets`, as a read from start to end finds them. Pure.

`GroupOffsets` has the rules, here as for commits while the groups are served; only an offset outside of transactions, which replaces
whatever came before it in the log, is put directly. Records of an unknown version are skipped and counted; they stay in the log.

A million offsets are read in about four seconds, so the work per offset is short. All offsets of a group in a topic have the same
key bytes before the partition number. These bytes are the key to the `Slot` of the offsets; they are not decoded each time.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from broker.groups.group.messages import GroupMetadata
from broker.groups.group.offsets import GroupOffsets
from broker.groups.group.transactional_offsets import StoredOffset
from broker.groups.offsets_topic import consumer_group_records
from broker.groups.offsets_topic.consumer_group_image import ConsumerGroupImage
from broker.groups.offsets_topic.consumer_group_records import ConsumerKey
from broker.groups.offsets_topic.records import (
    GroupKey,
    OffsetKey,
    UnknownValueVersion,
    UnreadableRecord,
    decode_group_value,
    decode_key,
    offset_fields,
    topic_id_of,
)
from protocol.errors import ErrorCode
from protocol.kafka.control_records import ABORT, COMMIT
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.keyed_records import keyed_records, keyed_records_with_headers
from protocol.kafka.record_batch import DECOMPRESSED_SIZE_MAX, BatchHeader, iter_batches, unpacked
from protocol.types import Buffer, TopicPartition

RECORDS_PER_STEP = 50
"""Records after which the caller may check the time."""

_MARKER = struct.Struct(">hh")
_PARTITION = struct.Struct(">i")
_VERSION = struct.Struct(">h")


StoredMetadata = GroupMetadata | ConsumerGroupImage | None
"""A classic group, or one of the new kind. None: only its offsets are stored."""


class Slot(NamedTuple):
    """The offsets of one group in one topic. `committed`: partition -> offset, a part of `offsets`."""

    committed: dict[int, StoredOffset]
    offsets: GroupOffsets
    topic: str


class OffsetsImage:
    """`steps` fills the image, then `groups` yields its groups. `skipped` counts the skipped records by kind.

    `first_errors` says why the first record of each kind could not be read.
    """

    def __init__(self) -> None:
        self.next_offset = 0
        self.skipped: Counter[str] = Counter()
        self.first_errors: dict[str, str] = {}
        self._metadata: dict[str, GroupMetadata] = {}
        self._consumer_groups: dict[str, ConsumerGroupImage] = {}
        self._offsets: dict[str, GroupOffsets] = {}
        self._slots: dict[bytes, Slot] = {}
        self._topic_ids: dict[bytes, bytes | None] = {}
        """By the headers of a record."""
        self._open: dict[int, dict[GroupOffsets, None]] = {}
        """Producer -> the groups with offsets of its transaction."""

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
            else:
                base, producer_id = header.base_offset, header.producer_id if header.is_transactional else None
                for key, value, headers in keyed_records_with_headers(data, header.record_count):
                    self._take(base, producer_id, key, value, headers)
                    taken += 1
                    if taken >= RECORDS_PER_STEP:
                        taken = 0
                        yield
            self.next_offset = header.next_offset

    def _take(self, base: int, producer_id: int | None, key: bytes | None, value: bytes | None, headers: bytes) -> None:
        """Takes a record of the batch at the log offset `base`. `producer_id`: of its transaction, None if it is in none."""
        slot = self._slots.get(key[:-4]) if key is not None else None
        if slot is None:
            slot = self._slot_of(key, value)
            if slot is None:
                return
        assert key is not None
        (partition,) = _PARTITION.unpack_from(key, len(key) - 4)
        try:
            stored = None if value is None else (base, *offset_fields(value), self._topic_id(headers))
        except (UnknownValueVersion, UnreadableRecord) as error:
            self._skip_value("committed offsets", error)
            return
        if producer_id is not None:
            self._take_transactional(base, producer_id, slot, partition, stored)
        elif stored is not None:
            slot.committed[partition] = stored
        else:
            slot.committed.pop(partition, None)
            if slot.offsets.transactional:
                slot.offsets.transactional.drop(TopicPartition(slot.topic, partition), base)

    def _topic_id(self, headers: bytes) -> bytes | None:
        """All offsets of a topic share the object."""
        if headers not in self._topic_ids:
            self._topic_ids[headers] = topic_id_of(headers)
        return self._topic_ids[headers]

    def _slot_of(self, key: bytes | None, value: bytes | None) -> Slot | None:
        """The slot for a key whose start is not in `_slots` yet. None: the record is not an offset; it is taken or skipped here."""
        try:
            decoded = decode_key(key)
            if isinstance(decoded, GroupKey):
                self._take_group(decoded.group_id, value)
            elif isinstance(decoded, ConsumerKey):
                self._take_of_consumer_group(decoded, value)
            elif isinstance(decoded, OffsetKey):
                assert key is not None
                offsets = self._offsets.get(decoded.group_id)
                if offsets is None:
                    offsets = self._offsets[decoded.group_id] = GroupOffsets()
                slot = self._slots[key[:-4]] = Slot(offsets.of_topic(decoded.topic), offsets, decoded.topic)
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

    def _take_of_consumer_group(self, key: ConsumerKey, value: bytes | None) -> None:
        image = self._consumer_groups.get(key.group_id)
        if image is None:
            image = self._consumer_groups[key.group_id] = ConsumerGroupImage()
        if value is None:
            image.remove(key)
            return
        try:
            (version,) = _VERSION.unpack_from(value)
            if version != consumer_group_records.VALUE_VERSION:
                raise UnknownValueVersion(version)
            image.take(consumer_group_records.decode(key, value))
        except UnknownValueVersion as error:
            self._skip_value("records of consumer groups", error)
        except (MalformedRequest, struct.error, ValueError) as error:
            self._skip_value("records of consumer groups", UnreadableRecord(f"{key.kind.name}: {error}"))

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

    def _take_transactional(
        self, base: int, producer_id: int, slot: Slot, partition: int, stored: StoredOffset | None
    ) -> None:
        """The offset waits for the marker. A batch without records opens no transaction: compaction keeps it for its sequence number,
        and may have removed the marker."""
        tp = TopicPartition(slot.topic, partition)
        self._open.setdefault(producer_id, {})[slot.offsets] = None
        if stored is not None:
            slot.offsets.transactional.add(producer_id, tp, stored)
        else:
            slot.offsets.transactional.take(producer_id, tp, base + 1)

    def _end_transaction(self, header: BatchHeader, data: bytes) -> Iterator[None]:
        """The marker's record may be missing: compaction removes it when nothing of its transaction is left."""
        kinds = [
            _MARKER.unpack_from(key)[1]
            for key, _ in keyed_records(data, header.record_count)
            if key is not None and len(key) >= _MARKER.size
        ]
        if not kinds or kinds[0] not in (ABORT, COMMIT):
            return
        for number, offsets in enumerate(self._open.pop(header.producer_id, ()), 1):
            yield from offsets.ending(header.producer_id, header.base_offset, is_commit=kinds[0] == COMMIT)
            if number % RECORDS_PER_STEP == 0:
                yield

    # -- giving out -----------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[tuple[str, StoredMetadata, GroupOffsets]]:
        """Each group that has a record or offsets: its id, its records (None: only offsets), its offsets."""
        stored: dict[str, StoredMetadata] = {**self._metadata}
        stored |= {group_id: image for group_id, image in self._consumer_groups.items() if image.is_there}
        for group_id, offsets in self._offsets.items():
            offsets.loaded()
            metadata = stored.pop(group_id, None)
            if metadata is not None or not offsets.is_empty:
                yield group_id, metadata, offsets
        for group_id, metadata in stored.items():
            yield group_id, metadata, GroupOffsets()
