"""Planted losses, copies, swaps, commits: the judge finds them, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tools.judge.tables import log_of, reports_of
from tools.judge.judgement import judge
from tools.judge.logs import Logs, PartitionLog
from tools.judge.reports import Report
from tools.judge.tables import Tables

GOOD = "produced a; acked 0 0 a; produced b; acked 0 1 b; consumed 0 0 a; consumed 0 1 b; committed 0 2"


PLANTED: dict[str, tuple[str, str, int | None, str]] = {
    "all is right": (GOOD, "ab", 2, ""),
    "records of others, and a gap": (GOOD, "ab-x", 2, ""),
    "the end is cut, and was read before": (GOOD, "a", 2, "lost b, vanished b"),
    "another record there": ("produced a; acked 0 0 a; produced b; acked 0 1 b", "ax", None, "lost b"),
    "swapped": ("produced a; produced b; acked 0 0 a; acked 0 1 b", "ba", None, "moved a, moved b, reordered a"),
    "acknowledged without offsets": ("produced a; produced b; acked 0 -1 a; acked 0 -1 b", "ab", None, ""),
    "only in another partition": ("produced a; produced b; acked 0 -1 a; acked 0 -1 b", "a b", None, "lost b"),
    "twice": ("produced a; acked 0 0 a", "aa", None, "duplicates a"),
    "three times, in two partitions": ("produced a; acked 0 0 a", "a aa", None, "duplicates a, duplicates a"),
    "produced again after a failure": ("produced a; failed a; produced a; acked 0 1 a", "aa", None, "duplicates a"),
    "behind a later one": ("produced a; produced b; acked 0 0 b; acked 0 1 a", "ba", None, "reordered a"),
    "no order between partitions": ("produced a; produced b; acked 0 0 b; acked 1 0 a", "b a", None, ""),
    "no order of a second attempt": (
        "produced a; failed a; produced b; produced a; acked 0 0 b; acked 0 1 a",
        "ba",
        None,
        "",
    ),
    "no order without `produced`": ("acked 0 1 b; acked 0 0 a", "ab", None, ""),
    "skipped": ("acked 0 0 a; acked 0 1 b; consumed 0 1 b; committed 0 2", "ab", 2, "unseen a, commits-ahead a"),
    "skipped by a group that commits nothing": ("acked 0 0 a; acked 0 1 b; consumed 0 1 b", "ab", None, "unseen a"),
    "not read yet": ("acked 0 0 a; acked 0 1 b; consumed 0 0 a", "ab", 1, "unread b"),
    "the cluster knows of a commit that was not reported": (
        "acked 0 0 a; acked 0 1 b; consumed 0 0 a",
        "ab",
        2,
        "unseen b",
    ),
    "read twice": ("acked 0 0 a; consumed 0 0 a; consumed 0 0 a", "a", None, "read-again a"),
    "read what others wrote": ("consumed 0 0 x", "x", None, ""),
    "read the end of an old log": ("consumed 0 5 x; committed 0 6", "5:x", None, ""),
    "read what was deleted since": ("consumed 0 2 x", "5:y", None, ""),
    "read what is not there": ("consumed 0 0 x", "y", None, "vanished x"),
    "a commit went back": ("acked 0 0 a; consumed 0 0 a; committed 0 1; committed 0 0", "a", None, "commits-back"),
    "the cluster lost a commit": ("acked 0 0 a; consumed 0 0 a; committed 0 1", "a", 0, "commits-back"),
    "the cluster has no commit": ("acked 0 0 a; consumed 0 0 a; committed 0 1", "a", -1, "commits-back"),
    "committed, then processed": (
        "acked 0 0 a; acked 0 1 b; consumed 0 0 a; committed 0 2; consumed 0 1 b",
        "ab",
        2,
        "commits-ahead b",
    ),
    "committed over offsets without records": ("acked 0 0 a; consumed 0 0 a; committed 0 3", "a--", None, ""),
    "failed, and without an answer": ("produced a; failed a; produced b", "a", None, "failed a, unanswered b"),
    "not read to the end": ("produced a; acked 0 0 a; produced b; acked 0 1 b", "a?", None, ""),
    "the topic is gone": ("produced a; acked 0 0 a", "", None, "lost a"),
}
"""What is planted -> the reports, the log, where the group goes on by the cluster, and what is found."""


def found(text: str, log: str, position: int | None = None, *, is_finished: bool = False) -> str:
    """`lost b, unseen a`; `log` as `log_of` takes it, an empty one if the topic is gone."""
    positions = {} if position is None else {("g", "t", 0): position}
    judged = judge(Tables.of(reports_of(text)), log_of(log), positions, is_finished=is_finished)
    assert judged.problems == []
    return ", ".join(f"{each.kind} {each.id}".strip() for each in judged.findings)


@pytest.mark.parametrize(("text", "log", "position", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_planted(text: str, log: str, position: int | None, expected: str) -> None:
    assert found(text, log, position) == expected


def test_a_program_that_is_done_has_read_everything() -> None:
    assert found("acked 0 0 a; acked 0 1 b; consumed 0 0 a", "ab", is_finished=True) == "unseen b"


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
    judged = judge(Tables.of(reports), log_of("ba"), {}, is_finished=False)
    assert [each.kind for each in judged.findings] == ["unanswered"] * 2


def test_a_record_without_an_offset_was_deleted_with_the_next_one_of_its_partition() -> None:
    """Or if the next one is the first that is left."""
    reports = reports_of("acked 0 5 a; acked 0 -1 b; acked 0 7 c; acked 0 -1 d; acked 0 9 e; acked 1 -1 f")
    logs = log_of("7:c-e") | {("t", 1): PartitionLog(0, 0, {})}
    judged = judge(Tables.of(reports), logs, {}, is_finished=False)
    assert ([each.id for each in judged.findings], judged.expired) == (["d", "f"], 2)
    judged = judge(Tables.of(reports), logs | log_of("9:e"), {}, is_finished=False)
    assert ([each.id for each in judged.findings], judged.expired) == (["f"], 4)


def test_what_the_log_has_deleted_is_not_judged() -> None:
    judged = judge(Tables.of(reports_of("acked 0 0 a; acked 0 5 b")), log_of("5:b"), {}, is_finished=False)
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
