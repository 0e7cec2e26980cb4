"""The analysis of a replay (RPL-3), and its delivery verdict, on operations that are made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from protocol.types import TopicPartition as Tp
from tests.support.replay_runs import a_plan, fetched, ns, produced, write_run
from tests.support.small_traces import end, produce, written
from tests.support.spark_session import running_session
from tools.judge.judgement import judge
from tools.judge.kinds import DUPLICATES, LOST, MOVED, REORDERED
from tools.judge.logs import PartitionLog
from tools.judge.outages import Wait, windows
from tools.judge.reports import ACKED, PRODUCED, Report
from tools.judge.tables import Tables
from tools.replay.checks import run_checks
from tools.replay.load.results import SCHEMA
from tools.replay.run.analysis import analyse
from tools.replay.run.driver import facts_of
from tools.replay.run.outage_windows import BIN_NS, find_windows
from tools.replay.run.plan import OutputDirectory
from tools.replay.run.reading_back import FOUND_SCHEMA, compare
from tools.replay.run.session import spark_schema
from tools.replay.run.spark_process import INTERPRETED
from tools.replay.run.stage import assigned, by_task
from tools.replay.run.summary import summary_lines
from tools.replay.traces.schema import Trace
from tools.sim import policies

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(600)]
APART_S = 0.02
APART = 0.006
"""Relative: percentiles come from buckets of 1 %."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_session(tmp_path_factory.mktemp("spark")) as found:
        yield found


def analysed(session: SparkSession, directory: Path, operations: list[dict[str, Any]], **run: Any) -> dict[str, Any]:
    output = write_run(directory, operations, **run)
    return analyse(session, output.read_plan(), output)


def test_spark_is_as_a_company_has_set_it_up(session: SparkSession, tmp_path: Path) -> None:
    """Another default file system, a path that looks like a pattern, and a trace that another program wrote."""
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://nowhere.invalid:8020")
    try:
        directory = tmp_path / "{a,b}*"
        analysis = analysed(session, directory, [batch(0), batch(10)])
        assert analysis["totals"]["produce"]["records"] == 20
        assert compare(session, write_found(directory, []))["lost"] == 20
        trace = {
            "time_ns": [0, 1],
            "op": ["produce", "fetch"],
            "client": ["a", "b"],
            "topic": ["t", "t"],
            "partition": [0, 1],
        }
        pyarrow.parquet.write_table(
            pyarrow.table(trace | {"records": [1, 1], "bytes": [90, 90]}), directory / "trace.parquet"
        )
        plan = a_plan(directory, trace=str(directory / "trace.parquet"))
        rows = assigned(session, plan).orderBy("time_ns").collect()
        assert [(row["acks"], row["max_wait_ms"], row["partition"]) for row in rows] == [(-1, None, 0), (None, 500, 1)]
    finally:
        hadoop.set("fs.defaultFS", before)


@pytest.mark.parametrize("tasks", [1, 2, 7, 40])
def test_each_task_has_a_partition_of_its_own(session: SparkSession, tasks: int) -> None:
    rows = session.range(200).select(sql.col("id"), (sql.col("id") % tasks).cast("int").alias("task"))
    placed = by_task(session, rows, tasks).select("task", sql.spark_partition_id().alias("partition")).distinct()
    assert len({row["partition"] for row in placed.collect()}) == placed.count() == tasks


def test_percentiles_rates_skew_and_lag(session: SparkSession, tmp_path: Path) -> None:
    """1000 batches with latencies of 1 to 1000 ms in a row, sent 0.5 ms late; a fetch each second that is one record behind."""
    batches = [
        produced(
            number / 100,
            number / 100 + (number + 1) / 1000,
            int(number % 4 == 0),
            sent=ns(number / 100 + 0.0005),
            leader=7 if number % 4 else 8,
            client=f"p{number % 60}",
            offset=number // 4 if number % 4 == 0 else number - number // 4 - 1,
        )
        for number in range(1000)
    ]

    fetches = [fetched(number, number + 0.1, 0, offset=100 * number, records=100, leader=7) for number in range(4)]
    analysis = analysed(session, tmp_path, [*batches, *fetches])
    latency = analysis["latency_ms"]["produce"]
    assert {name: latency["scheduled"][name] for name in ("p50", "p90", "p99", "p999")} == {
        "p50": pytest.approx(500.5, rel=APART),
        "p90": pytest.approx(900.1, rel=APART),
        "p99": pytest.approx(990, rel=APART),
        "p999": pytest.approx(999, rel=APART),
    }
    assert latency["scheduled"]["max"] == 1000
    assert latency["sent"]["p50"] == pytest.approx(500, rel=APART)
    assert latency["sent"]["max"] == 999.5
    assert analysis["lateness_ms"]["p99"] == pytest.approx(0.5, rel=APART)
    assert analysis["latency_ms"]["fetch"]["scheduled"]["p50"] == pytest.approx(100, rel=APART)
    totals = analysis["totals"]
    assert (totals["operations"], totals["not_done"]) == (1004, 0)
    assert (totals["produce"]["acknowledged"], totals["produce"]["bytes"]) == (1000, 100_000)
    assert totals["produce"]["per_second"] == pytest.approx(1000 / 10.99)
    over = analysis["over_time"]
    assert [row["second"] for row in over] == list(range(11))
    assert [row["due"] for row in over] == [100] * 10 + [0]
    assert sum(row["acknowledged"] for row in over) == 1000
    assert over[0]["max_ms"] == 100
    assert over[10]["p99_ms"] is None
    assert over[5]["p50_ms"] == pytest.approx(550.5, rel=APART)
    assert over[1]["fetched_records"] == 100
    assert analysis["skew"] == {
        "brokers": {"max_over_mean": pytest.approx(75_400 * 2 / 100_400), "largest": "7"},
        "partitions": {"max_over_mean": pytest.approx(75_400 * 2 / 100_400), "largest": "t-0"},
    }
    assert len(analysis["by_client"]) == 50
    assert list(analysis["series"]["client"]["others"]) != [0] * 11
    assert sum(analysis["series"]["broker"]["7"]) == 75_400
    by_partition = {(row["partition"], row["op"]): row["operations"] for row in analysis["by_partition"]}
    assert by_partition == {(0, "produce"): 750, (0, "fetch"): 4, (1, "produce"): 250}
    # At the end of second 1, batches up to number 181 are acknowledged: 136 records of partition 0. 200 - 136 < 0 is no lag.
    assert {row["second"]: row["records"] for row in analysis["lag"]} == {0: 0, 1: 0, 2: 0, 3: 0}
    assert analysis["outages"] == []
    assert (analysis["ramp"], analysis["knee"], analysis["errors"]) == ([], None, [])


def test_outages_errors_lag_and_what_a_fault_costs(session: SparkSession, tmp_path: Path) -> None:
    """The operations of the old analysis' test: partition 0 is led by the killed broker, nothing is acknowledged from 2.1 s to 6 s."""
    operations = [
        *(produced(number, number + 0.1, 0, offset=number) for number in range(3)),
        produced(3, 6.0, 0, offset=3),
        produced(4, 6.2, 0, offset=4),
        produced(5, 6.1, 0, offset=5),
        produced(9, 9.1, 0, offset=6),
        # Partition 1, of another leader: a long gap in which nothing was due is no outage.
        produced(0, 0.1, 1),
        produced(8, 8.25, 1),
        # Partition 2: one batch is given up at 7, another one that overlaps it at 7.5.
        produced(1, 1.5, 2),
        produced(3, 7.0, 2, error="REQUEST_TIMED_OUT"),
        produced(4, 7.5, 2, error="REQUEST_TIMED_OUT"),
        produced(9, 9.2, 2),
        produced(9.5, None, 2),
        # A reader that stops to get answers after offset 2.
        fetched(1, 1.2, 0, offset=0, records=2),
        fetched(6.5, None, 0),
    ]
    fault = {"role": "leader of t-0", "broker": 1, "error": "", "partitions": [["t", 0], ["t", 1]]}
    faults = [
        fault | {"verb": "kill", "at_ns": ns(2.5)},
        fault | {"verb": "restart", "at_ns": ns(7.8), "partitions": []},
        fault | {"verb": "pause", "at_ns": ns(8), "error": "nobody is leader", "partitions": []},
    ]
    plan = a_plan(tmp_path, partitions={"t": 3}, start_offsets={"t": [0, 0, 0]}, trace_rows=20)
    tasks = {"tasks": [], "problem": "task 1 was lost"}
    analysis = analysed(session, tmp_path, operations, faults=faults, plan=plan, tasks=tasks)
    outages = [(row["partition"], row["from_second"], row["to_second"], row["delayed"]) for row in analysis["outages"]]
    assert outages[:2] == [(2, 3, 7.5, 2), (0, 3, 6, 3)]
    kill, restart, pause = analysis["faults"]
    assert [(row["partition"], row["led"], row["seconds"]) for row in kill["outages"]] == [
        (0, True, 3.0),
        (2, False, 4.5),
        (1, True, 0.0),
    ]
    assert (kill["second"], kill["outage_s"], kill["delayed"]) == (2.5, 4.5, 5)
    # The p99 before the fault is about 0.5 s at most; the batches due in seconds 3 to 5 wait for longer, the next one is due at 8.
    assert kill["normal_after_s"] == 5.5
    assert restart["outages"][0] == {"topic": "t", "partition": 1, "led": False, "seconds": 0.25}
    assert pause["error"] == "nobody is leader"
    assert [(row["op"], row["error"], row["operations"], row["first_second"]) for row in analysis["errors"]] == [
        ("produce", "REQUEST_TIMED_OUT", 2, 3),
        ("fetch", "not answered in time", 1, 6.5),
        ("produce", "not answered in time", 1, 9.5),
    ]
    # What failed has no latency.
    assert analysis["distribution"][0]["produce_scheduled_ms"] == pytest.approx(100, rel=APART)
    assert analysis["latency_ms"]["produce"]["scheduled"]["p50"] == pytest.approx(200, rel=APART)
    assert [row["failed"] for row in analysis["over_time"]] == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1]
    # Six records are acknowledged in partition 0 by the end of second 6; two were fetched.
    assert [row["records"] for row in analysis["lag"]] == [0, 1, 1, 1, 1, 4]
    assert analysis["totals"]["not_done"] == 4
    assert [(row["task"], row["expected"], row["done"]) for row in analysis["tasks"]] == [(0, None, 14), (1, None, 2)]
    assert analysis["problem"] == "task 1 was lost"


def test_a_standstill_of_the_generator_is_no_outage(session: SparkSession, tmp_path: Path) -> None:
    """The loop of task 0 stands still from 2.005 s to 5 s beside a cluster that answers within 5 ms; partition 1 has no leader from 7 s on
    until 8 s, so its batches are not even sent."""
    still = (2.005, 5.0)
    operations = []
    for number in range(1000):
        due = number / 100
        ready = still[1] if still[0] < due < still[1] else due
        operations.append(produced(due, ready + 0.005, 0, ready=ns(ready), sent=ns(ready), offset=number))
    operations[200] |= {"answered": ns(still[1]), "unheard": ns(still[0])}  # in flight when the loop stopped
    operations += [produced(7, 8.002, 1, sent=ns(8), offset=at) for at in range(5)]
    meters = {
        0: {"still": [list(map(ns, still))], "cores": 0.5},
        1: {"still": [], "cores": 0.1},
    }
    analysis = analysed(session, tmp_path, operations, meters=meters)
    assert [(row["partition"], row["from_second"], row["to_second"]) for row in analysis["outages"]] == [(1, 7, 8.002)]
    assert [row["second"] for row in analysis["over_time"] if row["limited"]] == [2, 3, 4]
    generator = analysis["generator"]
    assert (generator["is_limited"], generator["limited"], generator["intervals"]) == (True, 3, 10)
    assert generator["late_ms"]["p99"] == pytest.approx(2900, rel=0.01)
    # The batches of partition 1 left late, but the generator was ready.
    assert analysis["over_time"][7]["late_p99_ms"] > 900
    assert analysis["over_time"][7]["ready_p99_ms"] == 0
    assert generator["cpu"] == {"brokers": None, "generator": pytest.approx(0.6), "spark": None}
    assert (analysis["tasks"][0]["longest_still_ms"], analysis["tasks"][0]["cores"]) == (2995, 0.5)


def test_end_to_end_latency_counts_to_the_first_read_of_each_record(session: SparkSession, tmp_path: Path) -> None:
    """Batches of ten records each second. Of two readers, the slow one reads first up to record 19; the other one starts at record 25."""
    batches = [produced(at, at + 0.01, 0, records=10, offset=10 * at) for at in range(6)]
    reads = [
        fetched(1, 1.5, 0, offset=0, records=20, client="slow"),
        fetched(3.3, 3.4, 0, offset=25, records=15, client="fast"),
        fetched(4, 4.1, 0, offset=40, records=10, client="fast"),
        fetched(4, 4.2, 0, offset=20, records=30, client="slow"),
        fetched(4.5, 4.6, 0, offset=0, records=10, client="slow"),  # again: not the first read
        produced(3, 3.01, 1, records=7, offset=0),  # a partition that nobody reads
    ]
    analysis = analysed(session, tmp_path, [*batches, *reads])
    found = analysis["end_to_end"]
    # 0: 1.5 s, 1: 0.5 s, 2: read whole at 4.2 s, but its last five records at 3.4 s, 3: 0.4 s, 4: 0.1 s; 5 is not read.
    assert (found["records"], found["unread"], found["drained_s"]) == (45, 10, None)
    assert found["ms"]["max"] == 1500
    assert found["ms"]["p50"] == pytest.approx(500, rel=APART)
    whole = analysed(session, tmp_path / "read", [*batches, *reads, fetched(6, 6.5, 0, offset=50, records=10)])
    assert (whole["end_to_end"]["unread"], whole["end_to_end"]["drained_s"]) == (0, pytest.approx(1.49))
    assert whole["lag"][-1]["records"] == 0


def test_outages_are_those_of_the_judge(session: SparkSession) -> None:
    """A random load with gaps, failures and lost answers. Answers of two times are in two bins."""
    random = Random(7)
    operations, due = [], 0.0
    for _ in range(600):
        due += random.expovariate(random.choice([1000, 200, 30]))
        error = random.choice([None, None, None, "REQUEST_TIMED_OUT"])
        waited = random.expovariate(random.choice([500, 20]))
        answered = None if error and random.random() < 0.5 else ceil((due + waited) / APART_S) * APART_S
        operations.append(produced(due, answered, random.randrange(3), error=error))
    session.createDataFrame(operations, spark_schema(SCHEMA)).createOrReplaceTempView("operations")
    end = ns(due + 10)
    waits: dict[int, list[Wait]] = {0: [], 1: [], 2: []}
    for row in operations:
        waits[row["partition"]].append(Wait(row["scheduled"], row["answered"] or end, row["error"] is None))
    judged = [
        ("t", p, began, to) for p, of in waits.items() for began, to, _ in windows(of, end) if to - began >= BIN_NS
    ]
    find_windows(session, end)
    found = sorted(map(tuple, session.table("windows").collect()))
    session.catalog.uncacheTable("windows")
    assert len(judged) > 50
    assert found == sorted(judged)


def test_the_knee_of_a_ramp(session: SparkSession, tmp_path: Path) -> None:
    """Steps of 10 s with 10, 20, 40 and 80 batches/s, against a target that does 50/s."""
    operations, free_s = [], 0.0
    for step, rate in enumerate((10, 20, 40, 80)):
        for number in range(10 * rate):
            due = 10 * step + number / rate
            free_s = max(free_s, due) + 0.02
            operations.append(produced(due, free_s))
    plan = a_plan(tmp_path, speeds=[1.0, 2.0, 4.0, 8.0], step_s=10.0, trace_rows=len(operations))
    analysis = analysed(session, tmp_path, operations, plan=plan)
    assert [round(row["offered_per_second"]) for row in analysis["ramp"]] == [10, 20, 40, 80]
    assert [round(row["achieved_per_second"]) for row in analysis["ramp"]] == [10, 20, 40, 50]
    assert [row["holds"] for row in analysis["ramp"]] == [True, True, True, False]
    assert analysis["knee"] == {"speed": 4.0, "per_second": pytest.approx(40)}
    assert analysis["ramp"][0]["p99_ms"] == pytest.approx(20, rel=APART)


# -- the delivery verdict --------------------------------------------------------------------------------------------------

Found = tuple[int, int, int | None, int | None, int | None, str]
"""Partition, offset, producer, first sequence, records, kind; of a `newest` also the size of the key and the key."""


def batch(sequence: int, partition: int = 0, **changed: Any) -> dict[str, Any]:
    """Ten records of producer 0, whose offset is their sequence."""
    values = {"records": 10, "first_sequence": sequence, "offset": sequence}
    return produced(0, 1, partition, **(values | changed))


def of_batches(records: int | None) -> int:
    """The records of the batches of which an unread range has the start."""
    return -(-(records or 1) // 10) * 10


def judged(
    session: SparkSession,
    directory: Path,
    batches: list[dict[str, Any]],
    found: Iterable[tuple[Any, ...]],
    compacted: Sequence[str] = (),
) -> dict[str, Any]:
    """`found`: a topic before each Found."""
    write_run(directory, batches)
    return compare(session, write_found(directory, found), compacted)


def write_found(directory: Path, found: Iterable[tuple[Any, ...]]) -> OutputDirectory:
    output = OutputDirectory(directory)
    output.found.mkdir()
    rows = [dict(zip(FOUND_SCHEMA.names, row, strict=False)) for row in found]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=FOUND_SCHEMA), output.found / "0.parquet")
    return output


WRONG = ("lost", "duplicated", "reordered", "corrupted", "unseen", "deleted", "elsewhere")
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
    "a loss beside what could not be read": (
        [],
        [GOOD[0], (0, 10, 0, 10, 6, "intact"), (0, 20, None, None, 10, "unread")],
        {"lost": 4, "unseen": 10},
    ),
    "deleted since": ([], [(0, 0, None, None, 20, "deleted"), GOOD[2]], {"deleted": 20}),
    "a batch that starts in what could not be read": (
        [],
        [(0, 0, None, None, 15, "unread"), GOOD[2]],  # its end, 15 to 19, is in the next range, which leaves it out
        {"unseen": 20},
    ),
    "an unknown offset in a partition that could not be read": (
        [batch(30, offset=-1)],
        [*GOOD, (0, 40, None, None, None, "unread")],
        {"unseen": 10},
    ),
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


def test_the_verdict_names_what_was_planted(session: SparkSession, tmp_path: Path) -> None:
    """Each case is a topic and a producer of its own."""
    batches, found = [], []
    for number, (case, (more, rows, _)) in enumerate(CASES.items()):
        batches += [each | {"topic": case, "producer": number} for each in (*map(batch, (0, 10, 20)), *more)]
        for row in rows:
            partition, offset, producer, *rest = row
            found.append((case, partition, offset, None if producer is None else number, *rest))
    verdict = judged(session, tmp_path, batches, found)
    expected = {case: of_case for case, (_, _, of_case) in CASES.items()}
    assert {name: verdict[name] for name in WRONG} == {
        name: sum(of_case.get(name, 0) for of_case in expected.values()) for name in WRONG
    }
    assert verdict["acknowledged"] == 30 * len(CASES) + 10  # and the batch of an unknown offset
    evidence = verdict["evidence"]
    counted = Counter(
        (name, row["topic"]) for name in ("lost", "reordered", "corrupted", "elsewhere") for row in evidence[name]
    )
    counted.update(
        {
            ("duplicated", row["places"][0]["topic"]): row["records"] * (row["copies"] - 1)
            for row in evidence["duplicated"]
        }
    )
    for name, kind in (("unseen", "unread"), ("deleted", "deleted")):
        counted.update({(name, row["topic"]): of_batches(row["records"]) for row in evidence[kind]})
    assert counted == {(name, case): count for case, of_case in expected.items() for name, count in of_case.items()}


def test_batches_without_acks_all_are_counted_apart(session: SparkSession, tmp_path: Path) -> None:
    """Two processes behind one client id, one with acks=1, are two producers: their batches may lie in any order among each other."""
    batches = [*map(batch, (0, 10, 20)), *(batch(at, producer=1, acks=1, offset=30 + at) for at in (0, 10, 20, 30))]
    found: list[Found] = [
        *(((0, at, 0, at, 10, "intact")) for at in (0, 20)),
        (0, 10, 1, 20, 10, "intact"),  # before its batch 10
        (0, 30, 0, 10, 10, "intact"),  # behind its batch 20
        (0, 40, 1, 10, 10, "intact"),
        (0, 50, 1, 30, 10, "intact"),
        (0, 60, 1, 30, 10, "intact"),
    ]
    verdict = judged(session, tmp_path, batches, [("t", *row) for row in found])
    assert verdict["without_acks_all"] == {"lost": 10, "duplicated": 10, "reordered": 1}
    assert {name: verdict[name] for name in ("lost", "duplicated", "reordered")} == {
        "lost": 0,
        "duplicated": 0,
        "reordered": 1,
    }
    assert [row["acks"] for row in verdict["evidence"]["reordered"]] == [-1, 1]


def test_the_newest_record_of_each_key_is_there_after_compaction(session: SparkSession, tmp_path: Path) -> None:
    """As the simulation's judge finds it, in a log from which random records are missing. The keys have 2 bytes of their hashes."""
    random = Random(3)
    records = [f"record {number}" for number in range(400)]
    keys = [int(policies.key_of(record).removeprefix(b"key")) for record in records]
    newest = {key: offset for offset, key in enumerate(keys)}
    is_there = [random.random() > (0.3 if newest[key] == offset else 0.6) for offset, key in enumerate(keys)]
    visible = [(offset, record) for offset, record in enumerate(records) if is_there[offset]]
    # Each batch has ten records. The broker's answer to the last one was lost.
    batches = [
        batch(at, topic="state", key_size=2, keys=[key | 5 << 16 for key in keys[at : at + 10]], offset=at)
        for at in range(0, 400, 10)
    ]
    batches[-1]["offset"] = None
    acked = [(None if offset >= 390 else offset, record) for offset, record in enumerate(records)]
    found: list[tuple[Any, ...]] = [("state", 0, offset, 0, offset, 1, "intact") for offset, _ in visible]
    for is_first in (True, False):  # two ranges, each with the newest of its own records
        newest_there = {keys[offset]: offset for offset, _ in visible if (offset < 200) is is_first}
        found += [("state", 0, offset, None, None, None, "newest", 2, key) for key, offset in newest_there.items()]
    expected = list(policies.outdated(Tp("state", 0), acked, visible))
    verdict = judged(session, tmp_path / "run", batches, found, ["state"])
    assert 3 < len(expected) < verdict["compacted"]
    assert verdict["lost"] == len(expected)
    assert verdict["lost"] + verdict["compacted"] == len(records) - len(visible)
    named = {row["sequence"] for row in verdict["evidence"]["lost"]}
    assert all(any(line.startswith(f"{records[sequence]} of ") for line in expected) for sequence in named)
    for kind, name in (("unread", "unseen"), ("deleted", "deleted")):
        # No acknowledged record is there, but a newer one of each key may be, or may have been.
        verdict = judged(
            session, tmp_path / kind, batches[:-1], [*found, ("state", 0, 400, None, None, 1, kind)], ["state"]
        )
        owed = list(policies.outdated(Tp("state", 0), acked[:390], visible))
        assert (verdict["lost"], verdict[name]) == (0, len(owed))
        assert verdict["compacted"] + len(owed) == sum(not there for there in is_there[:390])


def ended(op: str, transaction: int, due_s: float = 0, answered_s: float | None = 1, **changed: Any) -> dict[str, Any]:
    """The end of a transaction of producer 0."""
    values = {"op": op, "topic": "", "records": 0, "bytes": 0, "acks": None, "transaction": transaction}
    return produced(due_s, answered_s, **(values | changed))


def test_records_of_transactions_are_owed_if_they_were_committed(session: SparkSession, tmp_path: Path) -> None:
    """Transaction 0 is committed, 1 aborted, 2 left open, and the commit of 3 fails. One batch of each but the aborted is missing.

    Both batches of the aborted one are visible, so readers of committed records will get them.
    """
    batches = [batch(20 * each + at, transaction=each) for each in range(4) for at in (0, 10)]
    ends = [ended("commit", 0), ended("abort", 1), ended("commit", 3, error="not answered in time")]
    # The reader of committed records has got the first batch of the aborted transaction, but not the second one.
    reads = [(0, 30), (40, 45), (40, 40)]
    reader = [fetched(0, 1, 0, offset=begin, records=stop - begin, read_committed=True) for begin, stop in reads]
    other = fetched(0, 1, 0, offset=0, records=80, read_committed=False)
    found = [("t", 0, offset, 0, offset, 10, "intact") for offset in (0, 20, 30, 40, 60)]
    verdict = judged(session, tmp_path, [*batches, *ends, *reader, other], found)
    assert {name: verdict[name] for name in ("acknowledged", *WRONG)} == dict.fromkeys(WRONG, 0) | {
        "acknowledged": 20,
        "lost": 10,
    }
    assert (verdict["read_aborted"], [row["offset"] for row in verdict["evidence"]["read_aborted"]]) == (20, [20, 30])
    assert judged(session, tmp_path / "open", [*batches[4:], ended("abort", 2)], found)["left_open"] == 20


def test_ends_of_transactions_are_counted_apart_from_the_load(session: SparkSession, tmp_path: Path) -> None:
    ends = [ended("commit", at, at, at + 0.01 * (at + 1), client="committer") for at in range(4)]
    ends += [
        ended("abort", 4, 5, 5.1),
        ended("commit", 5, 6, 6.1, error="the transaction was aborted: MESSAGE_TOO_LARGE"),
    ]
    operations = [produced(at, at + 0.001, client="committer", transaction=at) for at in range(6)]
    analysis = analysed(session, tmp_path, [*operations, *ends])
    commits, aborts = analysis["transactions"]["commit"], analysis["transactions"]["abort"]
    assert [(each["operations"], each["failed"]) for each in (commits, aborts)] == [(5, 1), (1, 0)]
    assert (commits["ms"]["p50"], aborts["ms"]["max"]) == pytest.approx((20, 100), rel=0.5)
    assert (analysis["totals"]["operations"], analysis["totals"]["produce"]["operations"]) == (12, 6)
    assert {row["op"] for name in ("topic", "broker", "partition", "client") for row in analysis[f"by_{name}"]} == {
        "produce"
    }
    assert [row["op"] for row in analysis["errors"]] == ["commit"]
    (check,) = [check for check in run_checks(analysis, None) if check.name == "errors"]
    assert check.problem == "1 operations failed, most of them with: the transaction was aborted: MESSAGE_TOO_LARGE"
    lines = [
        line
        for line in summary_lines(analysis, {"acknowledged": 0, "without_acks_all": {}})
        if "  transactions" in line
    ]
    assert lines == ["  transactions                 4 committed, 1 aborted, 1 failed"]


def test_only_transactions_whose_ends_are_known_are_replayed(session: SparkSession, tmp_path: Path) -> None:
    ids = {"transactional": True, "transactional_id": "id"}
    rows = [
        produce(0, 0, client="a", acks=1, **ids),
        end(1, 1, "commit", client="a"),
        produce(2, 2, client="b", acks=1, **ids),
    ]
    trace = written(tmp_path / "trace", rows)
    facts = facts_of(Trace(trace))
    assert (facts.transactional, facts.partitions) == (1, {"t": 1})
    plan = a_plan(tmp_path, trace=str(trace), clients=2)
    found = assigned(session, plan).orderBy("time_ns", "request").collect()
    assert [
        (row["client"], row["op"], row["topic"], row["transactional_id"], row["acks"])
        for row in found
        if "0" in row["client"]
    ] == [
        ("a-0", "produce", "t", "id", -1),
        ("a-0", "commit", "", "id", -1),
        ("b-0", "produce", "t", None, 1),
    ]


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


@pytest.mark.parametrize("has_ends", [True, False])
@pytest.mark.parametrize("clients", [1, 2])
def test_what_the_plan_knows_of_the_trace_changes_no_row(
    session: SparkSession, tmp_path: Path, clients: int, has_ends: bool
) -> None:
    """Spark looks for it otherwise: the columns, the clients and whether transactions end."""
    ids = {"transactional": True, "transactional_id": "id"}
    rows = [produce(at, at, client=f"client {at % 5}", partition=-1, **ids) for at in range(20)]
    rows += [end(20, 20, "commit", client="client 3")] if has_ends else []
    facts = facts_of(Trace(written(tmp_path / "trace", rows)))
    assert (facts.has_ends, len(facts.clients)) == (has_ends, 5)
    plan = a_plan(tmp_path, trace=str(tmp_path / "trace"), clients=clients, tasks=3)
    known = {"trace_columns": list(facts.columns), "trace_clients": dict(facts.clients), "trace_has_ends": has_ends}
    found = [assigned(session, one).orderBy("time_ns", "request") for one in (plan, replace(plan, **known))]
    first, second = (rows.select(*sorted(rows.columns)).collect() for rows in found)
    assert first == second


@pytest.fixture(params=["interpreted", "compiled"])
def in_both_ways(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session that runs queries as a job of few rows does, and as one of many."""
    if request.param == "compiled":
        session.conf.set("spark.sql.codegen.wholeStage", "true")
        session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    yield session
    for setting in INTERPRETED:
        session.conf.set(*setting.split("="))


def test_spark_and_the_judge_find_the_same(in_both_ways: SparkSession, tmp_path: Path) -> None:
    """The words of docs/VERDICT.md mean the same in a replay: of batches, its first record; of records, each one."""
    session, history = in_both_ways, History(seed=1)
    verdict = judged(session, tmp_path, history.rows, [("t", *row) for row in history.found])
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
