"""The files of a log directory: a disk may have changed any bit, and another tool may have written them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

from broker.storage import aborted_transactions, checkpoints
from broker.storage.aborted_transactions import AbortedIndex, AbortedIndexCorrupt
from broker.storage.directories import disk_history, topic_ids
from broker.storage.directories.disk_history import DiskHistory
from broker.storage.directories.log_directory import META, LogDirectory, LogDirectoryError
from broker.storage.log import Log
from broker.storage.producers import producer_snapshots
from broker.storage.producers.producer_state import ProducerState
from broker.storage.sparse_index import IndexCorrupt, OffsetIndex, SparseIndex, TimeIndex
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch, iter_batches, parse_header
from protocol.types import TopicPartition
from tests.fuzz.decoder import Decoder, must
from tests.fuzz.sealing import packed, parts_of, sealed_batch, sealed_producer_snapshot
from tests.support.logs import DIRECTORY, SMALL, batch, open_at, produced
from tools.sim.world.disk import MemoryDisk

T_ID = "AAAAAAAAAAAAAAAAAAAABw"


def decoders() -> list[Decoder]:
    return [
        Decoder("checkpoint-offsets", _offsets, lambda: OFFSETS, (ValueError,)),
        Decoder("checkpoint-epochs", _epochs, lambda: EPOCHS, (ValueError,)),
        Decoder("producer-snapshot", _snapshot, _snapshots, (ValueError,)),
        Decoder("topic-id-file", _topic_id, lambda: TOPIC_IDS, bytes_max=200),
        Decoder("disk-history", _history, lambda: HISTORIES, bytes_max=300),
        Decoder("meta-properties", _meta, lambda: METAS, (LogDirectoryError,), bytes_max=300),
        Decoder("index", _index, _indexes, (IndexCorrupt,), bytes_max=400),
        Decoder("aborted-transactions", _aborted, _aborted_lists, (AbortedIndexCorrupt,), bytes_max=400),
        Decoder("log", _log, _logs, cpu_ms=200, cpu_us_per_byte=100, memory=16 << 20, lines=50_000, is_slow=True),
        Decoder(
            "fetched-batches",
            _fetched,
            _fetched_seeds,
            (KafkaError,),
            cpu_ms=200,
            cpu_us_per_byte=100,
            memory=16 << 20,
            lines=50_000,
            is_slow=True,
        ),
    ]


# -- texts ----------------------------------------------------------------------------------------------------------------

OFFSETS = [
    checkpoints.encode_offsets({}),
    checkpoints.encode_offsets({TopicPartition("orders", 0): 12, TopicPartition("orders", 10): 2**63 - 1}),
    b"0\n1\norders 0 1_0\n",
    b"0\n1\norders 0 \xd9\xa1\n",
]


def _offsets(data: bytes) -> object:
    found = checkpoints.decode_offsets(data)
    assert all(type(tp.partition) is int and type(offset) is int for tp, offset in found.items())
    assert checkpoints.decode_offsets(checkpoints.encode_offsets(found)) == found
    return found


EPOCHS = [checkpoints.encode_epochs([]), checkpoints.encode_epochs([(0, 0), (3, 120), (7, 120)]), b"0\n2\n3 1\n2 5\n"]


def _epochs(data: bytes) -> object:
    found = checkpoints.decode_epochs(data)
    assert checkpoints.decode_epochs(checkpoints.encode_epochs(found)) == found
    return found


TOPIC_IDS = [topic_ids.encode(T_ID), b"topic_id: " + T_ID.encode(), b"version: 0\ntopic_id: x\n", b"\0" * 60]


def _topic_id(data: bytes) -> object:
    found = topic_ids.decode(data)
    if found is not None:
        assert topic_ids.decode(topic_ids.encode(found)) == found
        assert topic_ids.can_be(data, found)
    return topic_ids.can_be(data, T_ID)


HISTORIES = [DiskHistory(4_294_967_296, ("/a", "/b")).encode(), b"since.broker.epoch=1_0\nversion=0\n", b"#\n"]


def _history(data: bytes) -> object:
    found = disk_history.decode(data)
    assert found is None or found.since >= 0
    return found


METAS = [
    b"#\nbroker.id=1\ncluster.id=c\nversion=0\n",
    b"broker.id=2\nversion=0",
    b"cluster.id=d\n",
    b"version=1\n",
    b"",
]


class _Files:
    """A file system with one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_file(self, path: str) -> bytes:
        return self._data

    def read_end(self, path: str, size: int) -> tuple[bytes, int]:
        return self._data[-size:], len(self._data)


def _meta(data: bytes) -> object:
    directory = LogDirectory(cast(Any, _Files(data)), "/d")
    assert META
    return directory.check_meta(1, "c")


# -- producer snapshots, indexes ------------------------------------------------------------------------------------------


def _snapshot(data: bytes) -> object:
    """A flag: as it is, or entries that get a header with a CRC."""
    content = sealed_producer_snapshot(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    state = producer_snapshots.decode(content, 1 << 40)
    # An entry without a batch beside ones with batches says nothing: what is written after it has none.
    written = producer_snapshots.encode(state)
    again = producer_snapshots.encode(producer_snapshots.decode(written, 1 << 40))
    assert producer_snapshots.encode(producer_snapshots.decode(again, 1 << 40)) == again
    return state


def _snapshots() -> Iterator[bytes]:
    state = ProducerState()
    for producer in (5, 6):
        for sequence in (0, 2, 4):
            header = build_batch(
                [(b"k", b"v", (), 1000)], producer_id=producer, producer_epoch=1, base_sequence=sequence
            )
            state.append(parse_header(header), 0)
    whole = producer_snapshots.encode(state)
    yield b"\0" + whole
    yield b"\1" + whole[10:]
    yield b"\1" + struct.pack(">qhiqiqiq", 5, 0, 7, 90, 3, 1000, -1, 80)


def _index(data: bytes) -> object:
    """A byte for the kind; then a file, which is loaded and looked up in."""
    kind: type[OffsetIndex | TimeIndex] = TimeIndex if data[:1] and data[0] & 1 else OffsetIndex
    content = data[1:]
    index: SparseIndex = kind(cast(Any, _Files(content)), "/i", 1000)
    last = index.last_in_file()
    index.load()
    assert index.last() == last
    assert len(index) * index.layout.size == len(content)
    for key in (0, 1000, 1001, 5000, 1 << 40):
        found = cast(Any, index).entry_before(key)
        assert found is None or len(found) == 2
    return last


def _indexes() -> Iterator[bytes]:
    yield b"\0" + b"".join(struct.pack(">ii", n * 10, n * 500 + 61) for n in range(5))
    yield b"\1" + b"".join(struct.pack(">qi", 1000 + n, n * 10) for n in range(5))
    yield b"\0"
    yield b"\0" + bytes(16)


def _aborted(data: bytes) -> object:
    """A `.txnindex`, which is loaded and searched."""
    index = AbortedIndex(cast(Any, _Files(data)), "/i", 1000, is_new=False)
    index.load()
    entries = aborted_transactions.decode(data, 1000)
    assert aborted_transactions.encode(entries) == data
    for offset, upper in ((0, 1), (1000, 1005), (0, 2**63 - 1)):
        found: list[tuple[int, int]] = []
        index.collect(offset, upper, found)
        assert {(e.producer_id, e.first_offset) for e in entries} >= set(found)
    return len(entries)


def _aborted_lists() -> Iterator[bytes]:
    yield b"".join(struct.pack(">hqqqq", 0, 7, n * 10, 1000 + n, 900 + n) for n in range(5))
    yield struct.pack(">hqqqq", 0, -1, 0, 2**62, -1)
    yield b""


# -- a whole log ----------------------------------------------------------------------------------------------------------

SEALED, RAW, INDEX, TIME_INDEX, SNAPSHOT, EPOCH_FILE, METADATA, NEW_SEGMENT, SWAPPED, CLEANED, OWN_OFFSET = range(11)
KINDS = 11


def _log(data: bytes) -> object:
    """A flag, then parts whose first byte names the kind of file: a log directory, which is opened and read from start to end.

    The log opens with any files, and can be appended to. After a crash it can be read to its end. Recovery does not check the CRCs of
    synced records (as in Kafka), so their damage is found by a reader, as CORRUPT_MESSAGE.
    """
    flags = data[0] if data else 0
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    offset, base = 0, 0
    content: dict[str, bytes] = {}

    def add(name: str, more: bytes) -> None:
        content[name] = content.get(name, b"") + more

    for part in parts_of(data[1:])[:12]:
        kind, body = (part[0] if part else 0) % KINDS, part[1:]
        stem = f"{base:020d}"
        match kind:
            case 0 | 8 | 9:
                sealed = bytearray(sealed_batch(body))
                struct.pack_into(">q", sealed, 0, offset)
                (delta,) = struct.unpack_from(">i", sealed, 23)
                offset += max(0, min(delta, 1000)) + 1
                add(f"{stem}.log" + ("", ".swap", ".cleaned")[max(0, kind - 7)], bytes(sealed))
            case 1:
                add(f"{stem}.log", body)
            case 10:
                add(f"{stem}.log", sealed_batch(body))
            case 2:
                add(f"{stem}.index", body)
            case 3:
                add(f"{stem}.timeindex", body)
            case 4:
                add(f"{base:020d}.snapshot", sealed_producer_snapshot(body))
            case 5:
                add(checkpoints.LEADER_EPOCHS, body)
            case 6:
                add("partition.metadata", body)
            case 7:
                base = offset
    for name, bytes_there in content.items():
        disk.write_new(f"{DIRECTORY}/{name}", bytes_there)
    log = open_at(
        disk,
        SMALL,
        was_clean=bool(flags & 1),
        recovery_point=offset if flags & 2 else 0,
        log_start=1 if flags & 4 else 0,
    )
    if flags & 3:
        try:
            _use(log)
        except KafkaError as error:
            must(error.code is ErrorCode.CORRUPT_MESSAGE, error)
        except AssertionError:
            return None
    else:
        _use(log)
    return log.log_end_offset


def _use(log: Log) -> None:
    """Every entry can be queried, and the file can be written."""
    assert 0 <= log.log_start_offset <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    _read_all(log)
    for ask in (lambda: log.offset_for_timestamp(1005, log.log_end_offset), log.max_timestamp_offset):
        try:
            ask()
        except KafkaError as error:
            must(error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), error)
    end = log.log_end_offset
    if end > 1 << 62:
        return
    log.append_as_leader(batch(2), min(max(log.leader_epochs.latest_epoch(), 0) + 1, 2**31 - 1))
    assert log.log_end_offset == end + 2
    log.truncate_to(end)
    assert log.log_end_offset == end


def _read_all(log: Log) -> None:
    for segment in log.segments:
        segment.load_indexes()
    offset = log.log_start_offset
    for _ in range(50):
        if offset >= log.log_end_offset:
            return
        found = log.read(offset, 1 << 20, log.log_end_offset, True)
        data = b"".join(bytes(part) for part in found.records)
        assert data, f"nothing at offset {offset} of {log.log_end_offset}"
        *_, (_, last) = iter_batches(data)
        assert last.next_offset > offset
        offset = last.next_offset


def _part(kind: int, body: bytes = b"") -> bytes:
    return bytes((kind,)) + body


def _logs() -> Iterator[bytes]:
    some = [_part(SEALED, batch(2, mark=n)) for n in range(3)]
    idempotent = [_part(SEALED, produced(7, n * 2)) for n in range(3)]
    index = _part(INDEX, struct.pack(">ii", 3, 105))
    times = _part(TIME_INDEX, struct.pack(">qi", 1001, 1))
    epochs = _part(EPOCH_FILE, checkpoints.encode_epochs([(0, 0)]))
    for flags in range(8):
        yield bytes((flags,)) + packed([*some, index, times, epochs])
        yield bytes((flags,)) + packed(
            [*some, epochs, _part(NEW_SEGMENT), *idempotent, _part(METADATA, topic_ids.encode(T_ID))]
        )
    yield b"\0" + packed([*some, _part(RAW, bytes(100))])
    yield b"\0" + packed([*some, _part(OWN_OFFSET, build_batch([(b"k", b"v", (), 5)], base_offset=6, leader_epoch=3))])
    yield b"\0" + packed([*some, _part(SWAPPED, batch(2))])
    yield b"\1" + packed(
        [*idempotent, _part(NEW_SEGMENT), _part(SNAPSHOT, struct.pack(">qhiqiqiq", 7, 0, 5, 5, 1, 1000, -1, -1)), *some]
    )
    yield b"\0" + packed([_part(SEALED, build_batch([(b"k", None, (), 1000)], compression=4))])


def _fetched(data: bytes) -> object:
    """What a follower gets from its leader: sealed parts, or with the flag the parts as they are. Then the log is used."""
    flags = data[0] if data else 0
    log = open_at(MemoryDisk(), SMALL)
    log.append_as_leader(batch(2), 0)
    failed: KafkaError | None = None
    for part in parts_of(data[1:])[:6]:
        records = part
        if not flags & 1:
            sealed = bytearray(sealed_batch(part))
            if not flags & 2:
                struct.pack_into(">q", sealed, 0, log.log_end_offset)
            records = bytes(sealed)
        before = log.log_end_offset
        try:
            log.append_as_follower(memoryview(records))
        except KafkaError as error:
            must(error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE), error)
            must(log.log_end_offset == before, "something was written")
            failed = error
    _use(log)
    if failed is not None:
        raise failed
    return log.log_end_offset


def _fetched_seeds() -> Iterator[bytes]:
    for flags in (0, 2):
        yield bytes((flags,)) + packed([batch(2), batch(1), produced(7, 0)])
        yield bytes((flags,)) + packed(
            [build_batch([(b"k", b"v", (), 5)], base_offset=2, leader_epoch=3, compression=2)]
        )
    yield b"\1" + packed([build_batch([(b"k", b"v", (), 5)], base_offset=2, leader_epoch=3) * 2])
