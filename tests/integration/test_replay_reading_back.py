"""The delivery verdict of a replay on planted losses, doubles, swaps, corruption and partitions that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.support.replay_runs import produced, write_run
from tests.support.spark import spark_session
from tools.judge.judgement import PartitionLog, Tables, judge
from tools.judge.kinds import DUPLICATES, LOST, MOVED, REORDERED
from tools.judge.reports import ACKED, PRODUCED, Report
from tools.replay.run.reading_back import FOUND_SCHEMA, compare

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]
Found = tuple[int, int, int | None, int | None, int, str]
"""Partition, offset, producer, first sequence, records, kind."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark") / "scratch") as session:
        yield session


def batch(sequence: int, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """Ten records of producer 0, whose offset is their sequence."""
    values = {"records": 10, "first_sequence": sequence, "offset": sequence}
    return produced(0, 1, partition, **(values | changed))


def judged(session: SparkSession, directory: Path, batches: list[dict[str, Any]], found: list[Found]) -> dict[str, Any]:
    output = write_run(directory, batches)
    output.found.mkdir()
    rows = [dict(zip(FOUND_SCHEMA.names, ("t", *row), strict=True)) for row in found]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=FOUND_SCHEMA), output.found / "0.parquet")
    return compare(session, output)


WRONG = ("lost", "duplicated", "reordered", "corrupted", "unseen", "elsewhere")
GOOD: list[Found] = [(0, at, 0, at, 10, "intact") for at in (0, 10, 20)]
CASES: dict[str, tuple[list[dict[str, Any]], list[Found], dict[str, int]]] = {
    "all is well": ([], GOOD, {}),
    "a lost batch": ([], [GOOD[0], GOOD[2]], {"lost": 10}),
    "two records lost of a batch": (
        [],
        [GOOD[0], (0, 10, 0, 10, 4, "intact"), (0, 16, 0, 16, 4, "intact"), GOOD[2]],
        {"lost": 2},
    ),
    "a double": ([], [*GOOD, (0, 30, 0, 10, 10, "intact")], {"duplicated": 10}),
    "a swap": (
        [],
        [GOOD[0], (0, 20, 0, 10, 10, "intact"), (0, 10, 0, 20, 10, "intact")],
        {"reordered": 1, "elsewhere": 2},
    ),
    "a corrupt record": (
        [],
        [(0, 0, 0, 0, 5, "intact"), (0, 5, None, None, 1, "corrupt"), (0, 6, 0, 6, 4, "intact"), *GOOD[1:]],
        {"lost": 1, "corrupted": 1},
    ),
    "a partition read in part": ([], [GOOD[0], GOOD[1], (0, 20, None, None, 10, "unread")], {"unseen": 10}),
    "a batch in another partition": ([], [GOOD[0], (1, 10, 0, 10, 10, "intact"), GOOD[2]], {"elsewhere": 1}),
    "neither failures nor acks=0 must be found": (
        [batch(30, error="NOT_LEADER_OR_FOLLOWER"), batch(40, acks=0), batch(50, records=0)],
        GOOD,
        {},
    ),
    "a failed batch may be found": (
        [batch(30, error="not answered in time")],
        [*GOOD, (0, 30, 0, 30, 10, "intact")],
        {},
    ),
}


@pytest.mark.parametrize(("more", "found", "expected"), CASES.values(), ids=CASES.keys())
def test_the_verdict_names_what_was_planted(
    session: SparkSession,
    tmp_path: Path,
    more: list[dict[str, Any]],
    found: list[Found],
    expected: dict[str, int],
) -> None:
    verdict = judged(session, tmp_path, [*map(batch, (0, 10, 20)), *more], found)
    assert {name: verdict[name] for name in WRONG} == dict.fromkeys(WRONG, 0) | expected
    assert verdict["acknowledged"] == 30
    for name in ("lost", "duplicated", "reordered", "corrupted", "elsewhere"):
        assert bool(verdict["evidence"][name]) == (name in expected)


class History:
    """Random batches of many producers in two partitions: acknowledged or not, lost in part or whole, doubled, swapped, moved, unread."""

    PRODUCERS = 150

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        written: list[list[tuple[int, int, int]]] = [[], []]  # of each partition: producer, first sequence, records
        self.batches: list[tuple[int, int, int, int]] = []  # and where it was sent
        for producer in range(self.PRODUCERS):
            sequence = 0
            for _ in range(random.randint(1, 6)):
                run, partition = (producer, sequence, random.randint(1, 4)), random.randrange(2)
                self.batches.append((*run, partition))
                copies = random.choices([0, 1, 2], [1, 8, 1])[0]
                for _ in range(copies):
                    log = written[partition if random.random() < 0.95 else 1 - partition]
                    log.insert(len(log) - random.choices([0, 1, 2], [8, 1, 1])[0] if len(log) > 2 else len(log), run)
                if copies == 1 and run[2] > 2 and random.random() < 0.3:  # its second record is lost
                    log[log.index(run) : log.index(run) + 1] = [(*run[:2], 1), (producer, sequence + 2, run[2] - 2)]
                sequence += run[2]
        self.found: list[Found] = []
        self.ids: list[dict[int, str]] = [{}, {}]
        places: dict[tuple[int, int, int], int] = {}
        for partition, runs in enumerate(written):
            at = 0
            for producer, first, records in runs:
                places.setdefault((producer, first, partition), at)
                self.found.append((partition, at, producer, first, records, "intact"))
                self.ids[partition] |= {at + n: f"{producer}:{first + n}" for n in range(records)}
                at += records + random.randrange(2)
        self.rows = [
            produced(
                0,
                1,
                partition,
                producer=producer,
                first_sequence=first,
                records=records,
                offset=places.get((producer, first, partition), 10_000 + number) + (random.random() < 0.05),
                error=None if random.random() < 0.9 else "NOT_LEADER_OR_FOLLOWER",
            )
            for number, (producer, first, records, partition) in enumerate(self.batches)
        ]

    def reports(self) -> Iterator[Report]:
        for row in self.rows:
            for n in range(row["records"]):
                id_, producer = f"{row['producer']}:{row['first_sequence'] + n}", str(row["producer"])
                yield Report(PRODUCED, "t", row["partition"], None, id_, producer=producer)
                if row["error"] is None:
                    yield Report(ACKED, "t", row["partition"], row["offset"] + n, id_)


@pytest.mark.parametrize("seed", [1, 2])
def test_spark_and_the_judge_find_the_same(session: SparkSession, tmp_path: Path, seed: int) -> None:
    """The words of docs/VERDICT.md mean the same in a replay: of batches, its first record; of records, each one."""
    history = History(seed)
    verdict = judged(session, tmp_path, history.rows, history.found)
    logs = {("t", p): PartitionLog(0, 20_000, ids) for p, ids in enumerate(history.ids)}
    found: dict[str, list[str]] = {LOST: [], DUPLICATES: [], REORDERED: [], MOVED: []}
    for finding in judge(Tables.of(history.reports()), logs, {}, is_finished=False).findings:
        if finding.kind in found:
            found[finding.kind].append(finding.id)

    def of_spark(view: str, sequence: str) -> set[str]:
        return {f"{row['producer']}:{row[sequence]}" for row in session.sql(f"SELECT * FROM {view}").collect()}

    firsts = {f"{producer}:{first}" for _, _, producer, first, _, _ in history.found}
    copies = [f"{producer}:{first}" for _, _, producer, first, _, _ in history.found]
    assert all(len(some) > 20 for some in found.values())
    assert of_spark("lost", "sequence") == set(found[LOST])
    assert verdict["duplicated"] == len(found[DUPLICATES])
    assert of_spark("steps_back", "first_sequence") == firsts & set(found[REORDERED])
    assert of_spark("elsewhere", "first_sequence") == {id_ for id_ in found[MOVED] if copies.count(id_) == 1} & {
        f"{producer}:{first}" for producer, first, *_ in history.batches
    }
