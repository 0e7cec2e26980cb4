"""A trace of what is in segment files, as of what is in topics (RPL-5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from tests.support.small_traces import rows_of
from tools.replay.traces.check import check
from tools.replay.traces.schema import Trace, TraceError
from tools.replay.traces.topic_import import import_segments

START_MS = 1_700_000_000_000


def segment(directory: Path, *batches: bytes) -> Path:
    directory.mkdir()
    file = directory / "00000000000000000000.log"
    file.write_bytes(b"".join(batches))
    return file


def batch(at_ms: int, keys: list[bytes | None], **more: int) -> bytes:
    return build_batch([(key, b"v" * 50, (), START_MS + at_ms) for key in keys], **more)


def test_batches_of_segments_become_produces_with_the_hashes_of_their_keys(tmp_path: Path) -> None:
    first = segment(tmp_path / "t-0", batch(5, [b"k1", b"k2", b"k1"]), batch(20, [None]))
    second = segment(tmp_path / "my-topic-3", batch(0, [b"k1"], compression=4))
    assert import_segments([first, second], tmp_path / "trace") == (3, {"t": 1, "my-topic": 4})
    assert check(tmp_path / "trace").count == 0
    trace = Trace(tmp_path / "trace")
    rows = [row for part in trace.batches() for row in part.to_pylist()]
    assert trace.info.start == START_MS * 1_000_000
    assert [(row["time_ns"], row["topic"], row["partition"], row["records"], row["key_bytes"]) for row in rows] == [
        (0, "my-topic", 3, 1, 2),
        (5_000_000, "t", 0, 3, 2),
        (20_000_000, "t", 0, 1, None),
    ]
    (k1,), (a, b, c) = rows[0]["keys"], rows[1]["keys"]
    assert k1 == a == c != b
    assert [row["compression"] for row in rows] == ["zstd", "none", "none"]
    assert rows[1]["bytes"] == len(batch(5, [b"k1", b"k2", b"k1"]))


def in_transaction(at_ms: int, producer: int, end: bool | None = None) -> bytes:
    """A batch, or the marker of a commit (True) or an abort."""
    if end is not None:
        return marker_batch(producer, 0, Marker(end, 0), START_MS + at_ms)
    return batch(at_ms, [None], producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        # (time, producer, end or None) of what partitions 0 and 1 have
        ([[(0, 1), (5, 1), (9, 1, True)], []], "0 producer-1, 5 producer-1, 5 producer-1 commit"),
        ([[(0, 1), (9, 1, True)], [(3, 1), (8, 1, True)]], "0 producer-1, 3 producer-1, 3 producer-1 commit"),
        # the second transaction begins before the marker of the first is written
        (
            [[(0, 1), (9, 1, True), (8, 1), (19, 1, False)], [(12, 1), (18, 1, False)]],
            "0 producer-1, 0 producer-1 commit, 8 producer-1, 12 producer-1, 12 producer-1 abort",
        ),
        # of two transactions, each in a partition of its own
        (
            [[(0, 1), (5, 1, True)], [(7, 1), (9, 1, True)]],
            "0 producer-1, 0 producer-1 commit, 7 producer-1, 7 producer-1 commit",
        ),
        # two producers; the log begins within a transaction, and ends within another
        (
            [[(1, 1, True), (2, 1), (3, 2), (4, 1, True), (5, 1), (6, 2, False)], []],
            "0 producer-1, 0 producer-1 commit, 1 producer-2, 1 producer-2 abort, 3 producer-1",
        ),
    ],
)
def test_markers_end_transactions(tmp_path: Path, logs: list[list[tuple[int, ...]]], expected: str) -> None:
    files = [
        segment(tmp_path / f"t-{number}", *(in_transaction(*each) for each in log)) for number, log in enumerate(logs)
    ]
    import_segments(files, tmp_path / "trace")
    assert check(tmp_path / "trace").count == 0
    found = rows_of(tmp_path / "trace", "time_ns", "transactional_id", "op")
    assert ", ".join(f"{at:g} {name}{'' if op == 'produce' else f' {op}'}" for at, name, op in found) == expected


def test_a_damaged_or_cut_segment_is_refused(tmp_path: Path) -> None:
    whole = batch(0, [b"k"]) + batch(1, [b"k"])
    for name, content, words in (
        ("a-0", whole[:-10], "ends inside a batch"),
        ("b-0", whole[:70] + b"!" + whole[71:], "the batch at offset 0 is damaged"),
    ):
        with pytest.raises(TraceError, match=words):
            import_segments([segment(tmp_path / name, content)], tmp_path / "trace")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other", b"", "its directory is not TOPIC-PARTITION, such as orders-0"),
        ("t-0", b"\xff" * 100, "t-0: a batch cannot be read"),
        ("t-0", b"", "there is no record"),
    ],
)
def test_a_file_that_is_no_segment_is_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        import_segments([segment(tmp_path / name, content)], tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
