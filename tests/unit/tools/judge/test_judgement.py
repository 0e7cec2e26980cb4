"""Planted losses, copies, swaps, commits: the judge finds them, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tools.judge.tables import log_of, reports_of
from tools.judge.judgement import Logs, PartitionLog, Tables, judge
from tools.judge.reports import Report

GOOD = "produced a; acked 0 0 a; produced b; acked 0 1 b; consumed 0 0 a; consumed 0 1 b; committed 0 2"
AT_2 = {("g", "t", 0): 2}


@pytest.mark.parametrize(
    ("text", "logs", "positions", "found"),
    [
        pytest.param(GOOD, log_of("ab"), AT_2, {}, id="all is right"),
        pytest.param(GOOD, log_of("ab-x"), AT_2, {}, id="records of others, and a gap"),
        pytest.param(
            GOOD, log_of("a"), AT_2, {"lost": ["b"], "vanished": ["b"]}, id="the end is cut, and was read before"
        ),
        pytest.param(
            "produced a; acked 0 0 a; produced b; acked 0 1 b",
            log_of("ax"),
            {},
            {"lost": ["b"]},
            id="another record there",
        ),
        pytest.param(
            "produced a; produced b; acked 0 0 a; acked 0 1 b",
            log_of("ba"),
            {},
            {"moved": ["a", "b"], "reordered": ["a"]},
            id="swapped",
        ),
        pytest.param(
            "produced a; produced b; acked 0 -1 a; acked 0 -1 b",
            log_of("ab"),
            {},
            {},
            id="acknowledged without offsets",
        ),
        pytest.param(
            "produced a; produced b; acked 0 -1 a; acked 0 -1 b",
            log_of("a", "b"),
            {},
            {"lost": ["b"]},
            id="only in another partition",
        ),
        pytest.param("produced a; acked 0 0 a", log_of("aa"), {}, {"duplicates": ["a"]}, id="twice"),
        pytest.param(
            "produced a; acked 0 0 a",
            log_of("a", "aa"),
            {},
            {"duplicates": ["a", "a"]},
            id="three times, in two partitions",
        ),
        pytest.param(
            "produced a; failed a; produced a; acked 0 1 a",
            log_of("aa"),
            {},
            {"duplicates": ["a"]},
            id="produced again after a failure",
        ),
        pytest.param(
            "produced a; produced b; acked 0 0 b; acked 0 1 a",
            log_of("ba"),
            {},
            {"reordered": ["a"]},
            id="behind a later one",
        ),
        pytest.param(
            "produced a; produced b; acked 0 0 b; acked 1 0 a",
            log_of("b", "a"),
            {},
            {},
            id="no order between partitions",
        ),
        pytest.param(
            "produced a; failed a; produced b; produced a; acked 0 0 b; acked 0 1 a",
            log_of("ba"),
            {},
            {},
            id="no order of a second attempt",
        ),
        pytest.param("acked 0 1 b; acked 0 0 a", log_of("ab"), {}, {}, id="no order without `produced`"),
        pytest.param(
            "acked 0 0 a; acked 0 1 b; consumed 0 1 b; committed 0 2",
            log_of("ab"),
            AT_2,
            {"unseen": ["a"], "commits-ahead": ["a"]},
            id="skipped",
        ),
        pytest.param(
            "acked 0 0 a; acked 0 1 b; consumed 0 1 b",
            log_of("ab"),
            {},
            {"unseen": ["a"]},
            id="skipped by a group that commits nothing",
        ),
        pytest.param(
            "acked 0 0 a; acked 0 1 b; consumed 0 0 a",
            log_of("ab"),
            {("g", "t", 0): 1},
            {"unread": ["b"]},
            id="not read yet",
        ),
        pytest.param(
            "acked 0 0 a; acked 0 1 b; consumed 0 0 a",
            log_of("ab"),
            AT_2,
            {"unseen": ["b"]},
            id="the cluster knows of a commit that was not reported",
        ),
        pytest.param(
            "acked 0 0 a; consumed 0 0 a; consumed 0 0 a", log_of("a"), {}, {"read-again": ["a"]}, id="read twice"
        ),
        pytest.param("consumed 0 0 x", log_of("x"), {}, {}, id="read what others wrote"),
        pytest.param("consumed 0 5 x; committed 0 6", log_of("x", start=5), {}, {}, id="read the end of an old log"),
        pytest.param("consumed 0 2 x", log_of("y", start=5), {}, {}, id="read what was deleted since"),
        pytest.param("consumed 0 0 x", log_of("y"), {}, {"vanished": ["x"]}, id="read what is not there"),
        pytest.param(
            "acked 0 0 a; consumed 0 0 a; committed 0 1; committed 0 0",
            log_of("a"),
            {},
            {"commits-back": [""]},
            id="a commit went back",
        ),
        pytest.param(
            "acked 0 0 a; consumed 0 0 a; committed 0 1",
            log_of("a"),
            {("g", "t", 0): 0},
            {"commits-back": [""]},
            id="the cluster lost a commit",
        ),
        pytest.param(
            "acked 0 0 a; consumed 0 0 a; committed 0 1",
            log_of("a"),
            {("g", "t", 0): -1},
            {"commits-back": [""]},
            id="the cluster has no commit",
        ),
        pytest.param(
            "acked 0 0 a; acked 0 1 b; consumed 0 0 a; committed 0 2; consumed 0 1 b",
            log_of("ab"),
            AT_2,
            {"commits-ahead": ["b"]},
            id="committed, then processed",
        ),
        pytest.param(
            "acked 0 0 a; consumed 0 0 a; committed 0 3",
            log_of("a--"),
            {},
            {},
            id="committed over offsets without records",
        ),
        pytest.param(
            "produced a; failed a; produced b",
            log_of("a"),
            {},
            {"failed": ["a"], "unanswered": ["b"]},
            id="failed, and without an answer",
        ),
        pytest.param(
            "produced a; acked 0 0 a; produced b; acked 0 1 b",
            log_of("a", is_whole=False),
            {},
            {},
            id="not read to the end",
        ),
        pytest.param("produced a; acked 0 0 a", {}, {}, {"lost": ["a"]}, id="the topic is gone"),
    ],
)
def test_planted(
    text: str, logs: Logs, positions: dict[tuple[str, str, int], int], found: dict[str, list[str]]
) -> None:
    judged = judge(Tables.of(reports_of(text)), logs, positions, is_finished=False)
    kinds: dict[str, list[str]] = {}
    for finding in judged.findings:
        kinds.setdefault(finding.kind, []).append(finding.id)
    assert kinds == found
    assert judged.problems == []


def test_a_program_that_is_done_has_read_everything() -> None:
    reports = reports_of("acked 0 0 a; acked 0 1 b; consumed 0 0 a")
    assert [each.kind for each in judge(Tables.of(reports), log_of("ab"), {}, is_finished=True).findings] == ["unseen"]


def test_every_group_must_read_everything() -> None:
    reports = [
        *reports_of("acked 0 0 a; acked 0 1 b; consumed 0 0 a; consumed 0 1 b"),
        Report("consumed", "t", 0, 1, "b", "h"),
    ]
    (finding,) = judge(Tables.of(reports), log_of("ab"), {}, is_finished=False).findings
    assert (finding.kind, finding.id) == ("unseen", "a")
    assert "group h" in finding.words


def test_two_producers_have_no_common_order() -> None:
    reports = [Report("produced", "t", id="a", producer="one"), Report("produced", "t", id="b", producer="two")]
    assert [each.kind for each in judge(Tables.of(reports), log_of("ba"), {}, is_finished=False).findings] == [
        "unanswered"
    ] * 2


def test_a_record_without_an_offset_was_deleted_if_the_next_one_of_its_partition_was_or_is_the_first_that_is_left() -> (
    None
):
    reports = reports_of("acked 0 5 a; acked 0 -1 b; acked 0 7 c; acked 0 -1 d; acked 0 9 e; acked 1 -1 f")
    logs = log_of("c-e", start=7) | {("t", 1): PartitionLog(0, 0, {})}
    judged = judge(Tables.of(reports), logs, {}, is_finished=False)
    assert ([each.id for each in judged.findings], judged.expired) == (["d", "f"], 2)
    judged = judge(Tables.of(reports), logs | log_of("e", start=9), {}, is_finished=False)
    assert ([each.id for each in judged.findings], judged.expired) == (["f"], 4)


def test_what_the_log_has_deleted_is_not_judged() -> None:
    judged = judge(Tables.of(reports_of("acked 0 0 a; acked 0 5 b")), log_of("b", start=5), {}, is_finished=False)
    assert (judged.findings, judged.expired) == ([], 1)


def test_records_of_an_earlier_run_with_the_same_ids_are_not_its_own() -> None:
    """Offsets 0 and 1 were there before; the group has read them, too, and committed behind them before it read its own."""
    text = "consumed 0 1 b; committed 0 2; produced a; produced b; acked 0 2 a; acked 0 3 b; consumed 0 2 a; consumed 0 3 b; committed 0 4"
    logs = {("t", 0): PartitionLog(0, 4, {0: "a", 1: "b", 2: "a", 3: "b"}, own_start=2)}
    assert judge(Tables.of(reports_of(text)), logs, {}, is_finished=True).findings == []
    skipped = text.replace("consumed 0 2 a; ", "")
    kinds = [
        each.kind
        for each in judge(Tables.of(reports_of(skipped)), logs, {("g", "t", 0): 4}, is_finished=False).findings
    ]
    assert kinds == ["unseen", "commits-ahead"]


def test_evidence_names_line_place_and_what_is_there_instead() -> None:
    (finding,) = judge(Tables.of(reports_of("acked 0 0 a; acked 0 1 b")), log_of("ax"), {}, is_finished=False).findings
    assert (finding.line, finding.topic, finding.partition, finding.offset) == ("2", "t", 0, 1)
    assert finding.words == "there is 'x'"


@pytest.mark.parametrize(
    ("text", "logs", "problem"),
    [
        (
            "produced a; acked 0 0 a; produced a",
            log_of("a"),
            "line 3: the id 'a' of topic t was produced before, in line 1",
        ),
        ("acked 0 0 a; acked 0 1 a", log_of("aa"), "line 2: the id 'a' of topic t was acked before, in line 1"),
        ("acked 0 0 a; acked 0 1 b", log_of("xy"), "no reported id is the id of a record in the log: line 1 says 'a'"),
    ],
)
def test_reports_that_cannot_be_judged(text: str, logs: Logs, problem: str) -> None:
    judged = judge(Tables.of(reports_of(text)), logs, {}, is_finished=False)
    assert judged.problems[0].startswith(problem)


@given(
    length=st.integers(3, 30),
    lost=st.sets(st.integers(0, 30)),
    doubled=st.sets(st.integers(0, 30)),
    skipped=st.sets(st.integers(0, 30)),
)
def test_what_is_planted_is_what_is_found(length: int, lost: set[int], doubled: set[int], skipped: set[int]) -> None:
    """Records that are lost from the log, doubled at its end, or skipped by a group that has committed the end."""
    ids = dict(enumerate(f"r{number}" for number in range(length)))
    there = {offset: id_ for offset, id_ in ids.items() if offset not in lost}
    copies = [offset for offset in sorted(doubled) if offset in there]
    log = there | {length + number: ids[offset] for number, offset in enumerate(copies)}
    reports = [Report("produced", "t", id=id_, line="p") for id_ in ids.values()]
    reports += [Report("acked", "t", 0, offset, id_, line="a") for offset, id_ in ids.items()]
    reports += [
        Report("consumed", "t", 0, offset, id_, "g", line="c", order=1)
        for offset, id_ in there.items()
        if offset not in skipped
    ]
    reports.append(Report("committed", "t", 0, length, group="g", line="d", order=2))
    logs = {("t", 0): PartitionLog(0, length + len(copies), log)}
    judged = judge(Tables.of(reports), logs, {("g", "t", 0): length}, is_finished=False)
    if not there:
        assert {each.kind for each in judged.findings} == {"lost"}
        return
    count = Counter(each.kind for each in judged.findings)
    unseen = sum(offset in there for offset in skipped)
    expected = {"lost": length - len(there), "duplicates": len(copies), "unseen": unseen, "commits-ahead": unseen}
    assert count == {kind: number for kind, number in expected.items() if number}
