"""What a recording keeps of requests, and its bounds in memory (RPL-5)."""

from __future__ import annotations

import io
from collections.abc import Callable
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.recording import record_keys as module_of_keys
from broker.recording import recording as module
from broker.recording.record_keys import keys_at_once, keys_of_all
from broker.recording.recording import BATCHES_COUNTED_MAX, NAME_MAX, Recording
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import build_batch
from protocol.recording import (
    ABORT,
    END,
    FETCH,
    FETCH_COMMITTED,
    FETCH_HEAD,
    KEY_HASH_SIZE,
    MEMBER,
    OFFSETS,
    PRODUCE,
    PRODUCE_HEAD,
    PRODUCE_IN_TRANSACTION,
    TRANSACTIONAL_HEAD,
    Counts,
    Header,
    RecordingReader,
    header_frame,
)
from protocol.types import TopicPartition

HEADS = {PRODUCE: PRODUCE_HEAD, FETCH: FETCH_HEAD}
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class File:
    """Takes blocks; `finish` says that the oldest was written."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.waiting: list[Callable[[bool], None]] = []
        self.sizes: list[int] = []
        self.is_slow = False

    def write(self, frame: bytes, requests: int, written: Callable[[bool], None]) -> None:
        self.sizes.append(len(frame))
        if self.is_slow:
            self.waiting.append(written)
            return
        for block in RecordingReader(io.BytesIO(header_frame(Header("r", 1, 0, 0.0)) + frame)).blocks():
            self.entries += block
        written(True)


@pytest.fixture
def file() -> File:
    return File()


def request(client: str | None = "c", arrived: float = 5.0) -> Any:
    connection = SimpleNamespace(remote_address="10.0.0.1")
    return SimpleNamespace(received_at=arrived, header=SimpleNamespace(client_id=client), connection=connection)


def batch(records: int = 1, compression: int = 0) -> bytes:
    return build_batch([(None, b"value", [], 1000)] * records, compression=compression)


def produce(
    recording: Recording,
    parts: dict[TopicPartition, bytes],
    errors: dict[TopicPartition, int] | None = None,
    transactional_id: str | None = None,
    **named: Any,
) -> None:
    entries = [(tp, memoryview(records)) for tp, records in parts.items()]
    entry = recording.produce(request(**named), -1, entries, transactional_id)
    recording.produced(entry, [ProducePartitionResult(tp.partition, (errors or {}).get(tp, 0)) for tp in parts])


def fetch(
    recording: Recording, found: list[tuple[TopicPartition, int, bytes]], session: TopicPartition | None = None
) -> None:
    entries = [(tp, FetchRequestPartition(tp.partition, -1, offset, -1, -1, 1000)) for tp, offset, _ in found]
    reads: list[Any] = [
        SimpleNamespace(size=len(data), data=FetchPartitionData(tp.partition, 0, 50, records=(data,) if data else ()))
        for tp, _, data in found
    ]
    recording.fetch(request(), 1, 500, 1000)(entries, reads, session)


def test_a_produce_is_recorded_with_what_was_appended(file: File) -> None:
    recording = Recording(file.write)
    small, large = batch(), batch(7, compression=4)
    produce(recording, {T0: small})
    produce(recording, {T0: small, T1: large, U0: small}, {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, client=None)
    recording.flush()
    assert [(*entry[:5], entry[5:]) for entry in file.entries] == [
        (PRODUCE, 5.0, "c", "10.0.0.1", -1, ["t", 0, 1, len(small), 0]),
        (PRODUCE, 5.0, "", "10.0.0.1", -1, ["t", 1, 7, len(large), 4, "u", 0, 1, len(small), 0]),
    ]
    assert (recording.requests, recording.rows, recording.counts) == (2, 3, Counts())


def test_transactions_are_recorded_with_their_ends_and_their_readers(file: File) -> None:
    recording = Recording(file.write)
    small, large = batch(), batch(7)
    produce(recording, {T0: small, T1: large}, {T0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, "id")
    produce(recording, {T0: small}, None, "i" * 1000)
    recording.offsets(request(), "id", "group", [T0, U0])
    recording.offsets(request(), "id", "group", [])
    recording.end(request(), "id", ABORT)
    recording.fetch(request(), 1, 500, 1000, is_committed=True)([], [], T0)
    recording.flush()
    assert [entry[0] for entry in file.entries] == [PRODUCE_IN_TRANSACTION] * 2 + [OFFSETS, END, FETCH_COMMITTED]
    in_part, long, offsets, end, _ = file.entries
    assert offsets[1:] == [5.0, "c", "10.0.0.1", "id", "group", "t", 0, "u", 0]
    assert in_part[1:] == [5.0, "c", "10.0.0.1", -1, "id", "t", 1, 7, len(large), 0]
    assert long[5:] == ["i" * NAME_MAX, "t", 0, 1, len(small), 0]
    assert end[1:] == [5.0, "c", "10.0.0.1", "id", ABORT]
    assert (recording.requests, recording.rows) == (5, 6)
    hashing = Recording(file.write, salt="salt")
    produce(hashing, {T0: small}, None, "id")
    hashing.end(request(), "id", ABORT)
    hashing.flush()
    produced, ended = file.entries[5:]
    assert produced[TRANSACTIONAL_HEAD - 1] == ended[4] != "id"


def test_the_keys_of_a_batch_are_recorded_as_sizes_and_hashes(file: File) -> None:
    """Equal keys of all brokers have equal hashes, however the batch is compressed; a salt changes them."""
    keys = [b"a", b"", b"a", None, b"k" * 200]
    parts = {
        tp: build_batch([(key, b"v" * 100, [], 1000 + at * 70) for at, key in enumerate(keys)], compression=compression)
        for tp, compression in ((T0, 0), (T1, 4))
    }
    for salt in ("", "", "salt"):
        recording = Recording(file.write, salt=salt)
        found = keys_at_once({1: memoryview(parts[T1]), 0: memoryview(parts[T0])}, recording.key_secret)
        assert found is not None
        entries = [(tp, memoryview(records)) for tp, records in parts.items()]
        errors = (ErrorCode.NONE, ErrorCode.NONE if salt else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        recording.produced(
            recording.produce(request(), -1, entries, None, found),
            [ProducePartitionResult(at, error) for at, error in enumerate(errors)],
        )
        recording.flush()
    first, again, salted = ([about for about in entry if isinstance(about, list)] for entry in file.entries)
    assert first == again != salted
    ((attributes, size, hashes),) = first
    assert (attributes, size, len(hashes)) == (0, 202, len(keys) * KEY_HASH_SIZE)
    each = [hashes[at : at + KEY_HASH_SIZE] for at in range(0, len(hashes), KEY_HASH_SIZE)]
    assert each[0] == each[2] != each[4]
    assert each[1] == each[3] == blake2b(b"", digest_size=KEY_HASH_SIZE).digest(), "as if it were empty"
    assert [about[0] for about in salted] == [0, 4]
    assert salted[0][1:] == salted[1][1:]


@pytest.mark.parametrize(
    ("batches", "at_once", "in_thread"),
    [
        ([batch(5)], 1, 1),
        ([batch(module_of_keys.RECORDS_AT_ONCE)], 1, 1),
        ([batch(module_of_keys.RECORDS_AT_ONCE), batch()], 0, 2),
        ([batch(module_of_keys.RECORDS_AT_ONCE - 1), batch()], 2, 2),
        ([build_batch([(b"k", b"v" * module_of_keys.BYTES_AT_ONCE, [], 1)])], 0, 1),
        ([build_batch([(b"k", bytes(module_of_keys.UNPACKED_AT_ONCE), [], 1)], compression=1)], 0, 1),
        ([batch(), build_batch([(b"k", bytes(module_of_keys.UNPACKED_MAX), [], 1)], compression=1), batch()], 0, 1),
        ([build_batch([(b"k", bytes(module_of_keys.UNPACKED_MAX // 2), [], 1)], compression=1)] * 3, 0, 1),
        ([batch(module_of_keys.RECORDS_MAX + 1)], 0, 0),
        ([batch(module_of_keys.RECORDS_MAX // 2, compression=4)] * 3, 0, 2),
        ([batch()[:-1]], 0, 0),
        ([batch(2, compression=4)[:-1]], 0, 0),
        ([b""], 0, 0),
    ],
)
def test_large_batches_are_left_to_a_thread_and_invalid_ones_have_no_keys(
    batches: list[bytes], at_once: int, in_thread: int
) -> None:
    """The limits are of all batches of a request together."""
    found = dict(enumerate(batches))
    assert len(keys_at_once(found, b"") or ()) == at_once
    assert len(keys_of_all(found, b"")) == in_thread


@pytest.mark.parametrize("records", [b"", b"x" * 60, batch()])
def test_a_refused_produce_is_counted_and_not_recorded(file: File, records: bytes) -> None:
    recording = Recording(file.write)
    produce(recording, {T0: records}, {T0: ErrorCode.CORRUPT_MESSAGE})
    recording.flush()
    assert (file.entries, recording.counts) == ([], Counts(refused=1))


def test_a_fetch_is_recorded_with_what_was_returned(file: File) -> None:
    recording = Recording(file.write)
    two = batch(3) + batch(4)
    fetch(recording, [(T0, 10, two), (T1, 20, b""), (U0, 30, batch() + batch()[:40])])  # the last batch is cut off
    fetch(recording, [(T1, 20, b""), (T0, 50, b"")])
    fetch(recording, [], session=U0)
    fetch(recording, [])
    recording.flush()
    assert [list(entry[FETCH_HEAD:]) for entry in file.entries] == [
        ["t", 0, 10, 7, len(two), 50, "u", 0, 30, 1, len(batch()), 50],
        ["t", 1, 20, 0, 0, 50],
        ["u", 0, -1, 0, 0, -1],
    ]
    assert file.entries[0][:FETCH_HEAD] == [FETCH, 5.0, "c", "10.0.0.1", 1, 500, 1000]


def test_many_batches_are_counted_up_to_a_limit_and_then_estimated(file: File) -> None:
    recording = Recording(file.write)
    count = 3 * BATCHES_COUNTED_MAX
    fetch(recording, [(T0, 0, batch(2) * count)])
    recording.flush()
    assert list(file.entries[0][FETCH_HEAD + 3 : FETCH_HEAD + 5]) == [2 * count, len(batch(2)) * count]
    assert recording.counts == Counts(estimated=1)


def test_members_of_groups_are_recorded_once(file: File) -> None:
    recording = Recording(file.write)
    for _ in range(3):
        recording.member(request(), "g", {"t", "u"})
        recording.member(request(), "g")
    recording.member(request("d" * 1000), "g" * 1000, [str(n) for n in range(2000)])
    recording.flush()
    assert [entry[0] for entry in file.entries] == [MEMBER] * 3
    assert [list(entry[5:]) for entry in file.entries] == [["t", "u"], [], []]
    assert [len(text) for text in file.entries[2][2:5]] == [NAME_MAX, len("10.0.0.1"), NAME_MAX]
    assert (recording.requests, recording.rows) == (3, 0)


def test_only_the_chosen_topics_are_recorded(file: File) -> None:
    recording = Recording(file.write, topics=["u"])
    produce(recording, {T0: batch()})
    produce(recording, {T0: batch(), U0: batch()})
    fetch(recording, [(T0, 0, batch())])
    fetch(recording, [(T0, 0, batch()), (U0, 0, b"")])
    recording.flush()
    assert [entry[HEADS[entry[0]]] for entry in file.entries] == ["u", "u"]


def test_client_ids_become_hashes_that_the_salt_changes(file: File) -> None:
    for salt in ("one", "one", "two"):
        recording = Recording(file.write, salt=salt)
        produce(recording, {T0: batch()}, client="secret")
        recording.flush()
    clients = [entry[2] for entry in file.entries]
    assert clients[0] == clients[1] != clients[2]
    assert "secret" not in clients


@settings(max_examples=15)
@given(st.lists(st.booleans(), max_size=30))
def test_every_request_is_recorded_or_counted_as_dropped(turns: list[bool]) -> None:
    """Memory is bounded while the disk is slow. True: the oldest block is written, if one waits; else a block of requests comes."""
    file = File()
    file.is_slow = True
    recording = Recording(file.write)
    produced = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_PARTITIONS", 10)
        patch.setattr(module, "MEMORY_MAX", 2_000)
        patch.setattr(module, "WRITE_SIZE", 1)
        for is_written in turns:
            if is_written and file.waiting:
                file.waiting.pop(0)(True)
            else:
                for _ in range(10):
                    produce(recording, {T0: b"x" * 61})
                produced += 10
            assert sum(file.sizes[len(file.sizes) - len(file.waiting) :]) <= 2_000
    while file.waiting:
        file.waiting.pop(0)(True)
    assert recording.requests + recording.dropped == produced
    assert recording.dropped == 0 or produced // 10 > 2_000 // max(file.sizes)


def test_the_keys_of_requests_without_an_answer_take_bounded_memory(file: File) -> None:
    """Produces wait for a follower that hangs: those beyond the limit are recorded without keys."""
    recording = Recording(file.write)
    keys = {0: (8, b"h" * 400)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MEMORY_MAX", 1_000)
        for refused in (True, False):
            waiting = [recording.produce(request(), -1, [(T0, memoryview(batch()))], None, keys) for _ in range(4)]
            for entry in waiting:
                recording.produced(entry, [ProducePartitionResult(0, ErrorCode.CORRUPT_MESSAGE if refused else 0)])
    recording.flush()
    assert [isinstance(entry[-1], list) for entry in file.entries] == [True, True, False, False]


def test_a_full_file_ends_the_recording_but_not_the_count(file: File) -> None:
    file.is_slow = True
    recording = Recording(file.write)
    for fits in (True, False):
        produce(recording, {T0: batch()})
        recording.flush()
        file.waiting.pop()(fits)
    produce(recording, {T0: batch()})
    recording.stop()
    assert (recording.requests, recording.dropped, file.waiting) == (1, 2, [])
    produce(recording, {T0: batch()})
    recording.flush()
    assert recording.dropped == 2, "a request that is answered after the stop is not part of the recording"
