"""The groups and offsets that the records of a `__consumer_offsets` partition give."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.groups.group.messages import CommittedOffset, GroupMetadata
from broker.groups.offsets_topic.image import OffsetsImage
from broker.groups.offsets_topic.records import (
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
    build_batch,
    iter_batches,
)
from protocol.types import TopicPartition
from tests.support.refusals import refused

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Record = tuple[bytes | None, bytes | None]
Found = dict[str, tuple[GroupMetadata | None, dict[TopicPartition, int]]]


def commit(tp: TopicPartition, offset: int, group_id: str = "g") -> Record:
    return encode_offset_key(group_id, tp), encode_offset_value(CommittedOffset(offset, 1, "", 1000))


def no_commit(tp: TopicPartition, group_id: str = "g") -> Record:
    return encode_offset_key(group_id, tp), None


def group(generation: int, group_id: str = "g") -> Record:
    return encode_group_key(group_id), encode_group_value(metadata(generation))


def metadata(generation: int) -> GroupMetadata:
    return GroupMetadata("consumer", generation, None, None, 5, ())


class Log:
    """The batches of a partition."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def write(self, *records: Record, **header: int) -> Log:
        self.data += build_batch([(k, v, (), 1000) for k, v in records], base_offset=self.end, **header)
        self.end += len(records)
        return self

    def write_in_transaction(self, producer: int, *records: Record) -> Log:
        return self.write(
            *records, producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT
        )

    def mark(self, producer: int, kind: int) -> Log:
        """0 abort, 1 commit."""
        marker = (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
        return self.write(marker, producer_id=producer, producer_epoch=0, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)

    def image(self) -> OffsetsImage:
        image = OffsetsImage()
        for _ in image.steps(self.data):
            continue
        assert image.next_offset == self.end
        return image

    def found(self) -> Found:
        return found(self.image())


def found(image: OffsetsImage) -> Found:
    """Group -> (its stored metadata, its offsets), without groups that have only offsets of open transactions."""
    return {
        group_id: (stored, {tp: offsets.get(tp).offset for tp in offsets})
        for group_id, stored, offsets in image.groups()
        if stored is not None or len(offsets)
    }


def test_the_last_record_of_a_key_counts() -> None:
    log = Log().write(commit(T0, 1), commit(T1, 2)).write(group(1)).write(commit(T0, 3)).write(group(2))
    log.write(commit(T0, 7, "simple")).write(group(9, "no-offsets"))
    assert log.found() == {
        "g": (metadata(2), {T0: 3, T1: 2}),
        "simple": (None, {T0: 7}),
        "no-offsets": (metadata(9), {}),
    }


def test_each_offset_has_the_log_offset_of_its_batch() -> None:
    """The log offset of an offset is that of its batch, as when a commit completes."""
    image = Log().write(group(1)).write(commit(T0, 1), commit(T1, 2)).image()
    ((_, _, offsets),) = image.groups()
    assert (offsets.log_offset(T0), offsets.log_offset(T1)) == (1, 1)


def test_keys_of_version_0_name_the_same_offsets() -> None:
    old_key = b"\x00\x00" + encode_offset_key("g", T0)[2:]
    old_value = struct.pack(">hqhq", 0, 4, 0, 9)
    assert Log().write((old_key, old_value)).found() == {"g": (None, {T0: 4})}
    assert Log().write((old_key, old_value), commit(T0, 5)).found() == {"g": (None, {T0: 5})}
    assert Log().write((old_key, old_value), no_commit(T0)).found() == {}


STRANGE: list[tuple[Record, str]] = [
    ((b"\x00\x0fof a later group coordinator", b"\x00\x00?"), "keys of version 15"),
    ((b"\x7f\xff", None), "keys of version 32767"),
    ((None, b"value"), "records without a key"),
    ((b"\x01", b"value"), "records without a key"),
    ((b"\x00\x01\x00\x09short", b""), "keys that cannot be read"),
    ((commit(T0, 1)[0], b"\x00\x05" + bytes(30)), "committed offsets of version 5"),
    ((commit(T0, 1)[0], b"\x00\x03\x00"), "committed offsets that cannot be read"),
    ((commit(T0, 1)[0], b""), "committed offsets that cannot be read"),
    ((group(1)[0], b"\x00\x07" + bytes(30)), "groups of version 7"),
    ((group(1)[0], b"\x00\x03\x00"), "groups that cannot be read"),
]


@pytest.mark.parametrize(("record", "what"), STRANGE)
def test_unknown_and_unreadable_records_are_skipped_and_counted(record: Record, what: str) -> None:
    """Known records before and after it count."""
    log = Log().write(commit(T0, 1), group(1)).write(record, commit(T1, 2)).write(record)
    image = log.image()
    assert image.skipped == {what: 2}
    assert ("cannot be read" in what) == (what in image.first_errors)
    assert found(image) == {"g": (metadata(1), {T0: 1, T1: 2})}


def pending(log: Log) -> dict[tuple[str, int, TopicPartition], int]:
    """The offsets of open transactions, with the log offsets of their batches, by group, producer and partition."""
    image = log.image()
    return {
        (group_id, producer, tp): stored[0]
        for group_id, _, offsets in image.groups()
        for producer in offsets.transactional.producers()
        for tp in offsets.transactional.partitions_of(producer)
        if (stored := offsets.transactional.get(producer, tp)) is not None
    }


def test_offsets_of_open_transactions_are_pending_in_their_groups() -> None:
    log = Log().write(commit(T0, 1)).write_in_transaction(7, commit(T0, 2)).write_in_transaction(7, commit(T0, 3))
    log.write_in_transaction(8, commit(T0, 4), commit(T1, 5, "other")).write_in_transaction(9, commit(T1, 6)).mark(9, 0)
    assert pending(log) == {("g", 7, T0): 2, ("g", 8, T0): 3, ("other", 8, T1): 3}
    assert pending(log.mark(8, 1)) == {("g", 7, T0): 2}
    assert pending(log.write_in_transaction(7, no_commit(T0))) == {}


@pytest.mark.parametrize("kind", [0, 1])
def test_a_tombstone_counts_against_the_offsets_of_transactions_before_it(kind: int) -> None:
    """As after compaction, which keeps only the tombstone."""
    log = Log().write_in_transaction(7, commit(T0, 2), commit(T1, 3)).write(no_commit(T0))
    log.write_in_transaction(8, commit(T0, 4))
    assert pending(log) == {("g", 7, T1): 0, ("g", 8, T0): 3}
    assert log.mark(7, kind).found() == ({"g": (None, {T1: 3})} if kind else {})
    log.mark(8, kind).write_in_transaction(9, commit(T0, 5))
    assert log.mark(9, 1).found()["g"][1][T0] == 5


def test_a_compacted_transaction_opens_nothing() -> None:
    """Its records and its marker are gone; the empty batch stays for the producer's sequence."""
    log = Log().write_in_transaction(7, commit(T0, 2)).write(commit(T0, 1))
    emptied = bytearray(log.data[:HEADER_SIZE])
    struct.pack_into(">i", emptied, 8, HEADER_SIZE - LOG_OVERHEAD)
    struct.pack_into(">i", emptied, HEADER_SIZE - 4, 0)
    (second,) = (at for at, header in iter_batches(log.data) if header.base_offset)
    log.data = bytes(emptied) + log.data[second:]
    assert log.image().open_transactions == 0
    assert log.found() == {"g": (None, {T0: 1})}


def test_other_control_records_end_no_transaction() -> None:
    """Compaction may leave a control batch without its record; newer versions may have other kinds."""
    log = Log().write_in_transaction(7, commit(T0, 2)).mark(7, 5)
    log.data += build_batch([(b"", b"", (), 1)], base_offset=log.end, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    log.end += 1
    assert pending(log) == {("g", 7, T0): 0}
    assert log.mark(7, 1).found() == {"g": (None, {T0: 2})}


def test_an_incomplete_batch_is_taken_with_the_next_read() -> None:
    log = Log().write(commit(T0, 1)).write(commit(T1, 2))
    image = OffsetsImage()
    list(image.steps(log.data[:-1]))
    assert image.next_offset == 1
    list(image.steps(log.data[len(log.data) // 2 :]))
    assert found(image) == {"g": (None, {T0: 1, T1: 2})}


def test_broken_records_raise_an_error() -> None:
    """A batch whose records do not fit its header is damaged, not of another version."""
    broken = bytearray(Log().write(commit(T0, 1)).data)
    broken[61] = 0x40  # the record's length
    with refused(ErrorCode.CORRUPT_MESSAGE):
        list(OffsetsImage().steps(bytes(broken)))


KEYS = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([T0, T1, TopicPartition("u", 0)]))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=5), max_size=12)
)
def test_any_history_gives_the_expected_groups(
    batches: list[list[tuple[tuple[str, TopicPartition], int | None]]],
) -> None:
    log = Log()
    expected: dict[str, dict[TopicPartition, int]] = {}
    for batch in batches:
        log.write(*(no_commit(tp, g) if n is None else commit(tp, n, g) for (g, tp), n in batch))
        for (group_id, tp), offset in batch:
            expected.setdefault(group_id, {}).pop(tp, None)
            if offset is not None:
                expected[group_id][tp] = offset
    assert log.found() == {group_id: (None, offsets) for group_id, offsets in expected.items() if offsets}
