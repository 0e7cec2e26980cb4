"""Cut and merge (RPL-1): what happens to times, requests and clients, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_traces import MS, START, end, fetch, produce, rows_of, written
from tools.replay.traces.check import check
from tools.replay.traces.cut import Part, cut
from tools.replay.traces.merge import merge
from tools.replay.traces.schema import Trace, TraceError

ROWS = [
    produce(0, 0),
    fetch(10, 1),
    produce(20, 2, client="other"),
    produce(30, 3, topic="u", partition=-1, key_hash=5),
    fetch(30, 4, offset=8),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "source", ROWS, t=2, u=6)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Part(from_ns=4 * MS), [(6, 1), (16, 2), (26, 3), (26, 4)]),
        (Part(from_ns=10 * MS, to_ns=30 * MS), [(0, 1), (10, 2)]),
        (Part(topics=["u"]), [(30, 3)]),
        (Part(clients=["other", "reader"]), [(10, 1), (20, 2), (30, 4)]),
        (Part(ops=["fetch"], to_ns=11 * MS), [(10, 1)]),
    ],
)
def test_a_part(source: Path, tmp_path: Path, part: Part, expected: list[tuple[int, int]]) -> None:
    out = tmp_path / "out"
    assert cut(source, out, part) == len(expected)
    assert rows_of(out, "time_ns", "request") == expected
    assert Trace(out).info.start == START + part.from_ns
    assert Trace(out).info.topics == ({"u": 6} if part.topics else {"t": 2, "u": 6})


def test_the_ends_of_transactions_stay_with_their_produces(tmp_path: Path) -> None:
    source = written(tmp_path / "source", [*ROWS, end(40, 5, "commit")], t=2, u=6)
    for name, part, ops in (
        ("topic", Part(topics=["u"]), ["produce", "commit"]),
        ("op", Part(ops=["produce"]), ["produce"] * 3 + ["commit"]),
        ("fetch", Part(ops=["fetch"]), ["fetch"] * 2),
    ):
        cut(source, tmp_path / name, part)
        assert rows_of(tmp_path / name, "op") == ops
    merge([source, tmp_path / "op"], tmp_path / "merged")
    assert rows_of(tmp_path / "merged", "transactional_id").count("id") == 2


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part(topics=["t", "no"]), "has no row with topic no in this part"),
        (Part(clients=["other"], to_ns=20 * MS), "has no row with client other in this part"),
        (Part(clients=["other"], topics=["u"]), "has no row in this part"),
        (Part(from_ns=31 * MS), "has no row in this part"),
    ],
)
def test_a_part_that_is_not_there(source: Path, tmp_path: Path, part: Part, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        cut(source, tmp_path / "out", part)
    assert list(tmp_path.iterdir()) == [source]


def test_traces_are_merged_by_wall_time(source: Path, tmp_path: Path) -> None:
    later = written(tmp_path / "later", [produce(0, 7), produce(0, 7, partition=1), fetch(9, 8)], START + 15 * MS, t=5)
    out = tmp_path / "out"
    assert merge([source, later], out) == 8
    expected = [(0, 0), (10, 1), (15, 5), (15, 5), (20, 2), (24, 6), (30, 3), (30, 4)]
    assert rows_of(out, "time_ns", "request") == expected
    assert (Trace(out).info.start, Trace(out).info.topics) == (START, {"t": 5, "u": 6})
    assert check(out).count == 0
    merge([later, source], tmp_path / "reversed")
    assert rows_of(tmp_path / "reversed", "time_ns") == [time for time, _ in expected]


def test_traces_are_merged_from_their_starts(source: Path, tmp_path: Path) -> None:
    later = written(tmp_path / "later", [produce(15, 7)], START + 1000 * MS)
    out = tmp_path / "out"
    merge([source, later], out, align=True, prefix_clients=True)
    assert rows_of(out, "time_ns", "client")[:4] == [(0, "1-app"), (10, "1-reader"), (15, "2-app"), (20, "1-other")]
