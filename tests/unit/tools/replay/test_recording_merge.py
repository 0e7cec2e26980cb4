"""The brokers' recordings become one trace: every row, by time, with request numbers and groups (RPL-5)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.recording import (
    ABORT,
    COMMIT,
    END,
    FETCH,
    FETCH_COMMITTED,
    INIT,
    MEMBER,
    OFFSETS,
    PRODUCE,
    PRODUCE_IN_TRANSACTION,
    Counts,
    Header,
    entries_frame,
    header_frame,
)
from tools.replay.recording import merge as merging
from tools.replay.recording.group_members import GroupMembers
from tools.replay.recording.merge import Summary, merge
from tools.replay.traces import ordering, schema
from tools.replay.traces.check import check
from tools.replay.traces.schema import Trace, TraceError

WALL = 1_700_000_000_000_000_000
NO_COUNTS = Counts()
TOPICS = {"t": 4, "u": 2, "unused": 1}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def write(
    directory: Path, broker: int, entries: Sequence[Sequence[Any]], counts: Counts = NO_COUNTS, *, wall_ns: int = WALL
) -> Path:
    path = directory / f"broker-{broker}"
    blocks = [entries_frame(counts, entries[at : at + 3]) for at in range(0, len(entries), 3)]
    path.write_bytes(header_frame(Header("r", broker, wall_ns, 100.0)) + b"".join(blocks))
    return path


def merged(directory: Path, files: Sequence[Path]) -> tuple[Summary, Trace, list[dict[str, Any]]]:
    runs = directory / "runs"
    runs.mkdir()
    summary = merge(files, directory / "trace", runs, "recorded", TOPICS)
    trace = Trace(directory / "trace")
    return summary, trace, [row for batch in trace.batches() for row in batch.to_pylist()]


def produce(time: float, *partitions: int, client: str = "p") -> list[Any]:
    flat = [field for partition in partitions for field in ("t", partition, 2, 100, 4 | 0x10)]
    return [PRODUCE, time, client, "10.0.0.1", -1, *flat]


def fetch(time: float, topic: str = "t", *, client: str = "c", offset: int = 10, records: int = 5) -> list[Any]:
    flat = [topic, 0, offset, records, 50 * records, 30]
    return [FETCH, time, client, "10.0.0.1", 1, 500, 1000, *flat]


def member(group: str, *topics: str, client: str = "c", address: str = "10.0.0.1") -> list[Any]:
    return [MEMBER, 100.0, client, address, group, *topics]


def test_the_columns_of_a_produce_and_of_a_fetch(directory: Path) -> None:
    files = [
        write(directory, 1, [produce(101.5, 0, 3), fetch(101.0)]),
        write(directory, 2, [fetch(99.5, "u", offset=-1, records=0), member("g")], wall_ns=WALL + 500_000_000),
    ]
    summary, trace, rows = merged(directory, files)
    nothing = dict.fromkeys(rows[0])
    of_fetch = {
        "op": "fetch",
        "client": "c",
        "read_committed": False,
        "min_bytes": 1,
        "max_wait_ms": 500,
        "max_bytes": 1000,
        "group": "g",
    }
    of_produce = {"op": "produce", "client": "p", "compression": "zstd", "acks": -1, "transactional": True}
    of_batch = {"time_ns": 1_500_000_000, "request": 2, "topic": "t", "records": 2, "bytes": 100}
    assert rows == [
        nothing | of_fetch | {"time_ns": 0, "request": 0, "topic": "u", "partition": 0, "records": 0, "bytes": 0},
        nothing
        | of_fetch
        | {"time_ns": 1_000_000_000, "request": 1, "topic": "t", "partition": 0, "records": 5, "bytes": 250}
        | {"offset": 10, "behind": 20},
        nothing | of_produce | of_batch | {"partition": 0},
        nothing | of_produce | of_batch | {"partition": 3},
    ]
    assert (trace.info.start, trace.info.topics, trace.info.source) == (WALL, {"t": 4, "u": 2}, "recorded")
    assert (summary.requests, summary.records) == ({"produce": 1, "fetch": 2}, {"produce": 4, "fetch": 5})
    assert (summary.clients, summary.groups, summary.seconds) == ({"c", "p"}, {"g"}, 1.5)


def of_id(time: float, what: int | None, name: str = "id", client: str = "p") -> list[Any]:
    """A batch in a transaction (None), or how the transaction ended."""
    if what is None:
        return [PRODUCE_IN_TRANSACTION, time, client, "10.0.0.1", -1, name, "t", 0, 2, 100, 0x10]
    return [END, time, client, "10.0.0.1", name, what]


@pytest.mark.parametrize(
    ("what", "ops"),
    [
        ([None, None, COMMIT, None, ABORT], "produce produce commit produce abort"),
        ([None, COMMIT, COMMIT, ABORT], "produce commit"),  # sent again
        ([COMMIT, None], "produce"),  # of a transaction from before the recording
        ([INIT, None, INIT, INIT, None, COMMIT], "produce abort produce commit"),  # the first producer has crashed
    ],
)
def test_transactions_and_how_they_ended(directory: Path, what: list[int | None], ops: str) -> None:
    """Batches and ends come from two brokers. An end without a batch is left out."""
    entries = [of_id(100 + at, each) for at, each in enumerate(what)]
    files = [write(directory, 1, [each for each in entries if each[0] != END])]
    files.append(
        write(directory, 2, [[FETCH_COMMITTED, *fetch(99.0)[1:]], *(each for each in entries if each[0] == END)])
    )
    summary, trace, rows = merged(directory, files)
    assert [row["op"] for row in rows] == ["fetch", *ops.split()]
    assert [row["request"] for row in rows] == list(range(len(rows)))
    assert [row["read_committed"] for row in rows] == [True, *[None] * (len(rows) - 1)]
    assert {row["transactional_id"] for row in rows[1:]} == {"id"}
    assert {(row["topic"], row["partition"], row["records"]) for row in rows if row["op"] in ("commit", "abort")} <= {
        ("", 0, 0)
    }
    assert (trace.info.topics, summary.topics) == ({"t": 4}, {"t"})
    assert check(directory / "trace").count == 0


def test_an_abort_by_the_next_producer_is_of_the_client_that_crashed(directory: Path) -> None:
    entries = [of_id(100, None, client="old"), of_id(101, INIT, client="new"), of_id(102, None, "other", "new")]
    _, _, rows = merged(directory, [write(directory, 1, entries)])
    assert [(row["op"], row["client"]) for row in rows] == [("produce", "old"), ("abort", "old"), ("produce", "new")]


def test_keys_have_the_mean_size_of_their_topic_and_offsets_have_their_group(directory: Path) -> None:
    """Blocks and runs are so small that each row is in one of its own."""

    def keyed(time: float, topic: str, size: int, *hashes: int) -> list[Any]:
        about = [0x10, size, b"".join(each.to_bytes(8, "big", signed=True) for each in hashes)]
        return [PRODUCE_IN_TRANSACTION, time, "p", "10.0.0.1", -1, "id", topic, 0, len(hashes), 100, about]

    entries = [
        keyed(100.0, "t", 10, -1, 2),
        keyed(101.0, "t", 24, 2),
        keyed(102.0, "u", 0, 3),
        produce(103.0, 1),
        [OFFSETS, 104.0, "p", "10.0.0.1", "id", "g", "t", 0, "u", 1],
        of_id(105.0, COMMIT),
        [OFFSETS, 106.0, "p", "10.0.0.1", "id", "g", "t", 0],
        of_id(107.0, ABORT),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "BLOCK_KEYS", 1)
        patch.setattr(ordering, "RUN_BYTES", 1)
        patch.setattr(ordering, "CHUNK_BYTES", 1)
        patch.setattr(schema, "ROW_GROUP_BYTES", 1)
        summary, _, rows = merged(directory, [write(directory, 1, entries)])
    assert [(row["topic"], row["key_bytes"], row["keys"]) for row in rows[:4]] == [
        ("t", 11, [-1, 2]),
        ("t", 11, [2]),
        ("u", 0, [3]),
        ("t", None, None),
    ]
    committed = [row for row in rows if row["op"] == "offsets"]
    assert [(row["request"], row["group"], row["transactional_id"]) for row in committed] == [
        (4, "g", "id"),
        (4, "g", "id"),
        (6, "g", "id"),
    ]
    assert [(row["topic"], row["partition"]) for row in committed] == [("t", 0), ("u", 1), ("t", 0)]
    assert [row["op"] for row in rows[4:]] == ["offsets", "offsets", "commit", "offsets", "abort"]
    assert (summary.keys, summary.key_bytes) == ({"t": 3, "u": 1}, {"t": 34, "u": 0})
    assert check(directory / "trace").count == 0


times = st.integers(0, 30).map(lambda step: 100 + step / 10)
requests = st.tuples(times, st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))


@settings(max_examples=30)
@given(st.lists(st.lists(requests, max_size=30), min_size=1, max_size=3), st.integers(1, 10))
def test_rows_of_all_files_are_there_once_in_order_of_time(
    files: list[list[tuple[float, list[int]]]], run_rows: int
) -> None:
    """The runs are so small that requests of one time are in many of them."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "RUN_ROWS", run_rows)
        patch.setattr(merging, "BLOCK_ROWS", 1)
        paths = [
            write(
                Path(name),
                broker,
                [produce(time, *partitions, client=f"{broker}-{at}") for at, (time, partitions) in enumerate(found)],
            )
            for broker, found in enumerate(files)
        ]
        expected = sorted(
            (round((time - 100) * 1e9), broker, at, partition)
            for broker, found in enumerate(files)
            for at, (time, partitions) in enumerate(found)
            for partition in partitions
        )
        if not expected:
            with pytest.raises(TraceError, match="no rows"):
                merged(Path(name), paths)
            return
        _, trace, rows = merged(Path(name), paths)
    began = trace.info.start - WALL
    found_rows = [(row["time_ns"] + began, *map(int, row["client"].split("-")), row["partition"]) for row in rows]
    assert sorted(found_rows) == expected
    clients: list[str] = []
    for row in rows:
        if not clients or clients[-1] != row["client"]:
            clients.append(row["client"])
        assert row["request"] == len(clients) - 1
    assert len(clients) == len(set(clients)), "the rows of a request follow each other"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], None),
        ([("c", "a", "g", ())], "g"),
        ([("c", "a", "g", ("t", "u"))], "g"),
        ([("c", "a", "g", ("u",))], None),
        ([("c", "b", "g", ()), ("d", "a", "g", ())], None),
        ([("c", "a", "g", ()), ("d", "b", "g", ("u",))], None),  # the group does not read the topic
        ([("c", "a", "g", ("t",)), ("c", "a", "h", ("u",))], "g"),
        ([("c", "a", "g", ("t",)), ("c", "a", "h", ("t",))], None),
        ([("c", "a", "g", ("t",)), ("c", "a", "h", ())], None),
    ],
)
def test_the_group_of_a_fetch(seen: list[tuple[str, str, str, tuple[str, ...]]], expected: str | None) -> None:
    members = GroupMembers()
    for client, address, group, topics in seen:
        members.add(client, address, group, topics)
    assert members.group_of("c", "a", "t") == expected


def test_counts_of_all_files_are_added_and_a_file_that_ends_early_is_named(directory: Path) -> None:
    files = [write(directory, broker, [produce(101.0, 0)] * 6, Counts(broker, 10, 100)) for broker in (1, 2)]
    files[1].write_bytes(files[1].read_bytes()[:-1])
    summary, trace, rows = merged(directory, files)
    assert (summary.counts, trace.info.dropped) == (Counts(3, 20, 200), 3)
    assert [(file.broker, file.rows, file.is_cut) for file in summary.files] == [(1, 6, False), (2, 3, True)]
    assert len(rows) == 9


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        [],
        [7, 100.0],
        [PRODUCE, "soon", "c", "a", 1],
        [PRODUCE, float("nan"), "c", "a", 1, "t", 0, 1, 1, 0],
        [PRODUCE, 100.0, "c", "a", 1, "t", 0, 1, 1],
        [PRODUCE, 100.0, "c", "a", 1, "t", 0, 1, 1, 7],
        [PRODUCE, 100.0, "c", "a", 1, "t", 2**40, 1, 1, 0],
        [FETCH, 100.0, "c", "a", 1, 1],
        [MEMBER, 100.0, "c"],
        [PRODUCE, 100.0, "c", "a", 1, "t", 0, 1, 1, [0, 1, b"short"]],
        [PRODUCE, 100.0, "c", "a", 1, "t", 0, 1, 1, [0, 1]],
        [END, 100.0, "c", "a", "id", 7],
        [OFFSETS, 100.0, "c", "a", "id", "g", "t"],
    ],
)
def test_what_is_no_entry_is_named_and_no_trace_is_left(directory: Path, entry: Any) -> None:
    with pytest.raises(TraceError, match="recording"):
        merged(directory, [write(directory, 1, [produce(100.0, 0), entry])])
    assert not (directory / "trace").exists()


def test_a_file_that_is_no_recording_is_refused(directory: Path) -> None:
    (directory / "broker-1").write_bytes(b"something else")
    with pytest.raises(TraceError, match="broker-1 is not a recording"):
        merged(directory, [directory / "broker-1"])
