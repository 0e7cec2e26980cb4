"""Compaction of a log with transactions, as a real Kafka or a later ottla wrote it (LOG-4)."""

from __future__ import annotations

from broker.storage.log import Log
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT
from tests.support.compaction import CompactedLog, Written, headers_of, keyed, records_of

ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"
MARKER_VALUE = bytes(6)


def write(it: CompactedLog, *records: Written, producer: int, attributes: int = TRANSACTIONAL_BIT) -> None:
    offset = it.log.log_end_offset
    data = keyed(
        *records,
        timestamp=it.time.wall_ms(),
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=-1 if attributes & CONTROL_BIT else offset,
        attributes=attributes,
    )
    it.log.append_as_follower(memoryview(data))


def end(it: CompactedLog, kind: bytes, producer: int) -> None:
    write(it, (kind, MARKER_VALUE), producer=producer, attributes=TRANSACTIONAL_BIT | CONTROL_BIT)


def values_of(it: CompactedLog) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for r in records_of(it.log) if r.value != MARKER_VALUE]


def test_an_aborted_transaction_replaces_nothing_and_is_removed_with_its_marker() -> None:
    it = CompactedLog()
    write(it, (b"a", b"good"), producer=1)
    end(it, COMMIT, 1)
    write(it, (b"a", b"bad"), (b"b", b"bad"), producer=2)
    write(it, (b"c", b"good"), producer=1)
    end(it, ABORT, 2)
    end(it, COMMIT, 1)
    write(it, (b"open", b"1"), producer=3)
    it.roll()
    assert it.clean() == 0, "the first open transaction starts in the first segment"
    end(it, COMMIT, 3)
    it.roll()
    assert it.clean() == 1
    headers = headers_of(it.log)
    data = [(h.base_offset, h.record_count) for h in headers if not h.is_control]
    assert data == [(0, 1), (2, 0), (4, 1), (7, 1)], "the aborted producer's last batch keeps its header"
    assert [h.base_offset for h in headers if h.is_control] == [1, 5, 6, 8]


def test_a_transaction_whose_abort_marker_is_not_cleaned_replaces_nothing() -> None:
    """Its marker is in the active segment. With the markers of the cleaned part alone, it would count as committed."""
    it = CompactedLog()
    it.append((b"a", b"good"))
    write(it, (b"a", b"bad"), producer=2)
    it.roll()
    end(it, ABORT, 2)
    assert it.clean() == 1
    assert values_of(it) == [(0, b"good")]


def test_a_transaction_whose_marker_is_not_replicated_is_not_cleaned() -> None:
    """A marker beyond the high watermark may be cut off and replaced by another one."""
    it = CompactedLog()
    it.append((b"a", b"old"))
    it.append((b"a", b"good"))
    it.roll()
    write(it, (b"a", b"bad"), producer=2)
    it.roll()
    it.append((b"x", b"x"))
    it.roll()
    end(it, COMMIT, 2)
    it.high_watermark = it.log.log_end_offset - 1
    assert it.clean() == 1
    assert it.log.cleaned_up_to == 2
    assert values_of(it) == [(1, b"good"), (2, b"bad"), (3, b"x")]

    it.log.truncate_to(it.high_watermark)
    end(it, ABORT, 2)
    it.high_watermark = None
    assert it.clean() == 1
    assert values_of(it) == [(1, b"good"), (3, b"x")]


def test_the_list_of_aborted_transactions_is_kept_while_their_batches_are() -> None:
    """An entry goes with the first pass that finds no batch before the marker; the marker itself when its time is over."""
    it = CompactedLog()
    it.append((b"a", b"good"))
    write(it, (b"a", b"bad"), producer=2)
    end(it, ABORT, 2)
    write(it, (b"b", b"bad"), producer=2)  # its producer's last batch, which keeps its header
    end(it, ABORT, 2)
    it.roll()
    both = [(2, 1, 2, 3), (2, 3, 4, 5)]
    for expected in [both, both]:  # the first pass still finds the batch that it drops
        assert aborted_in(it.log) == expected
        assert aborted_in(it.reopened().log) == expected
        it.append((b"x", b"x"))
        it.roll()
        it.clean()
    assert aborted_in(it.log) == [(2, 3, 4, 5)]
    assert values_of(it) == [(0, b"good"), (6, b"x")]
    assert it.log.read(0, 2**20, it.log.log_end_offset, True, True).aborted == [(2, 3)]


def aborted_in(log: Log) -> list[tuple[int, int, int, int]]:
    lists = [segment.aborted for segment in log.segments if segment.aborted is not None]
    for one in lists:
        one.load()
    return [tuple(entry) for one in lists for entry in one.entries()]
