"""Planted aborted, torn, doubled, early, missing and cyclic histories of transactions: the judge finds them, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tools.judge.judgement import judge
from tools.judge.kinds import HARMLESS
from tools.judge.logs import (
    NO_POSITION,
    LoggedBatch,
    OpenTransaction,
    Outcome,
    PartitionLog,
    Unfenced,
    transactions_in,
    unfenced_in,
)
from tools.judge.outages import outages_of
from tools.judge.reports import Report, parse
from tools.judge.tables import Tables
from tools.judge.verdict import CLEAN, INCOMPLETE, Client, conclude

SHORT = {
    "begun": "begun txn={} transactional-id=p",
    "produced": "produced topic=t txn={} id={}",
    "plain": "produced topic=t id={}",
    "acked": "acked topic=t partition={} offset={} id={}",
    "acked-in": "acked topic=t partition={} offset={} txn={} id={}",
    "failed-in": "failed topic=t txn={} id={}",
    "read": "consumed group=g topic=t partition={} offset={} id={}",
    "dirty": "consumed group=g topic=t partition={} offset={} isolation=read_uncommitted id={}",
    "crossed": "consumed group=g topic=t partition={} offset={} txn={} id={}",
    "dirty-crossed": "consumed group=g topic=t partition={} offset={} txn={} isolation=read_uncommitted id={}",
    "within": "consumed group=g topic=in partition={} offset={} txn={} id={}",
    "sent": "sent-offsets txn={} group=g topic=in partition={} offset={}",
    "outside": "committed group=g topic=in partition={} offset={}",
    "goes-on": "committed group=g topic=t partition={} offset={}",
    "committing": "committing txn={}",
    "committed": "committed-txn txn={}",
    "aborted": "aborted-txn txn={}",
}


def reports_of(text: str) -> list[Report]:
    """`produced T a; acked 0 0 a; committed T`: one report each second."""
    found = []
    for number, part in enumerate(filter(None, map(str.strip, text.split(";")))):
        event, *values = part.split(" ")
        report = parse(f"@ottla {SHORT[event].format(*values)}", str(number + 1), number, float(number))
        assert report is not None
        found.append(report)
    return found


def logs_of(*partitions: str) -> dict[tuple[str, int], PartitionLog]:
    """`1a 1b 1+ 2c 2- d`: records of producers 1 and 2, their commit and abort, and a record without a transaction."""
    logs = {}
    for number, written in enumerate(partitions):
        ids, batches = {}, []
        for offset, word in enumerate(written.split()):
            producer = int(word[0]) if word[0].isdigit() else -1
            marker = {"+": True, "-": False}.get(word[1:])
            if marker is None:
                ids[offset] = word.lstrip("0123456789")
            batches.append(LoggedBatch(offset, offset, producer, 0, producer >= 0, marker))
        transactions, left = transactions_in(batches)
        end = len(batches)
        logs["t", number] = PartitionLog(
            0, end, ids, transactions=transactions, open=left, unfenced=unfenced_in(batches)
        )
    return logs


GOOD = "begun T; produced T a; produced T b; acked 0 0 a; acked 1 0 b; committing T; committed T; "
ABORT = "begun T; produced T a; acked 0 0 a; aborted T; "
CROSSED = (
    "produced T a; acked 0 0 a; produced U b; acked 0 1 b; produced U c; acked 1 0 c; produced T d; acked 1 1 d; "
    "committed T; committed U"
)
RETRIED = "begun T; produced T a; {}aborted T; begun U; produced U a; {}committed U"
LOOP = "within 0 0 T x; sent T 0 1; "

PLANTED: dict[str, tuple[str, tuple[str, ...], int | None, str]] = {
    "all is right": (GOOD + "read 0 0 a; read 1 0 b; goes-on 0 1; goes-on 1 1", ("1a 1+", "1b 1+"), None, ""),
    "an aborted record is not read": (ABORT + "plain b; acked 0 2 b; read 0 2 b; goes-on 0 3", ("1a 1- b",), None, ""),
    "an aborted record is tried again": (
        ABORT + "begun U; produced U a; acked 0 2 a; committed U; read 0 2 a",
        ("1a 1- 1a 1+",),
        None,
        "",
    ),
    "nobody knows: committed": ("begun T; produced T a; acked 0 0 a; committing T", ("1a 1+",), None, ""),
    "nobody knows: aborted": ("begun T; produced T a; acked 0 0 a; committing T", ("1a 1-",), None, ""),
    "nobody knows: torn": (
        "begun T; produced T a; acked 0 0 a; produced T b; acked 1 0 b; committing T",
        ("1a 1+", "1b 1-"),
        None,
        "torn b",
    ),
    "nobody knows, and its offsets are not there": (
        "within 0 0 T x; produced T a; acked 0 0 a; sent T 0 1; committing T",
        ("1a 1+",),
        -1,
        "torn",
    ),
    "an aborted record is read": (ABORT + "read 0 0 a", ("1a 1-",), None, "aborted-read a"),
    "an aborted record of others is read": ("read 0 0 x", ("1x 1-",), None, "aborted-read x"),
    "a reader of uncommitted records may": (ABORT + "dirty 0 0 a", ("1a 1-",), None, ""),
    "a committed record is not read": (
        GOOD + "read 0 0 a; goes-on 1 1",
        ("1a 1+", "1b 1+"),
        None,
        "unseen b, commits-ahead b",
    ),
    "torn": (GOOD, ("1a 1+", "1b 1-"), None, "torn b"),
    "torn: one control record is missing": (GOOD, ("1a 1+", "1b"), None, "torn b, lso-stuck b"),
    "early": (
        "begun T; produced T a; acked 0 0 a; read 0 0 a; committing T; committed T",
        ("1a 1+",),
        None,
        "early-read a",
    ),
    "early, without `committing`": (
        "begun T; produced T a; acked 0 0 a; read 0 0 a; produced T b; acked 0 1 b; committed T; read 0 1 b",
        ("1a 1b 1+",),
        None,
        "early-read a",
    ),
    "read while it is open": ("begun T; produced T a; acked 0 0 a; read 0 0 a", ("1a",), None, "early-read a, open a"),
    "doubled": (
        "begun T; produced T a; acked 0 0 a; committed T; begun U; produced U a; acked 0 2 a; committed U",
        ("1a 1+ 2a 2+",),
        None,
        "duplicates a",
    ),
    "an abort is taken for a commit": (
        "begun T; produced T a; acked 0 0 a; committed T",
        ("1a 1-",),
        None,
        "undone a",
    ),
    "a commit is taken for an abort": (ABORT, ("1a 1+",), None, "revived a"),
    "nobody has asked for the commit": (
        "begun S; committing S; committed S; begun T; produced T a; acked 0 0 a",
        ("1a 1+",),
        None,
        "revived a",
    ),
    "an aborted record is tried again, and lost": (RETRIED.format("acked 0 0 a; ", ""), ("1a 1-",), None, "lost a"),
    "an aborted record is tried again, and its offset is lost": (
        RETRIED.format("acked 0 0 a; ", "acked 0 -1 a; "),
        ("1a 1-",),
        None,
        "lost a",
    ),
    "a record that failed in an aborted transaction is tried again, and lost": (
        RETRIED.format("failed-in T a; ", "produced U b; acked 0 2 b; "),
        ("1a 1- 1b 1+",),
        None,
        "failed a, lost a",
    ),
    "a record that failed is not in its transaction": (
        "begun T; produced T a; failed-in T a; produced T b; acked 0 0 b; committed T",
        ("1b 1+",),
        None,
        "failed a",
    ),
    "no offset is known": (RETRIED.format("acked 0 -1 a; ", "acked 0 -1 a; "), ("1a 1- 1a 1+",), None, ""),
    "only acknowledgements: undone": ("begun T; acked-in 0 0 T a; committed T", ("1a 1-",), None, "undone a"),
    "only acknowledgements: torn": (
        "begun T; acked-in 0 0 T a; acked-in 1 0 T b; committing T",
        ("1a 1+", "1b 1-"),
        None,
        "torn b",
    ),
    "the commit is asked for twice": (
        "begun T; produced T a; acked 0 0 a; committing T; read 0 0 a; committing T; committed T",
        ("1a 1+",),
        None,
        "",
    ),
    "a reader of uncommitted records misses the committed one": (
        RETRIED.format("acked 0 0 a; dirty 0 0 a; ", "acked 0 2 a; "),
        ("1a 1- 1a 1+",),
        None,
        "unseen a",
    ),
    "missing": ("begun T; produced T a; committed T", ("",), None, "unanswered a, lost a"),
    "open": ("begun T; produced T a; acked 0 0 a", ("1a",), None, "open a"),
    "loop": (LOOP + "produced T a; acked 0 0 a; committed T", ("1a 1+",), 1, ""),
    "loop: the offsets are lost": (
        LOOP + "produced T a; acked 0 0 a; committed T",
        ("1a 1+",),
        -1,
        "commits-back",
    ),
    "loop: aborted, and tried again": (
        LOOP + "aborted T; within 0 0 U x; sent U 0 1; committed U",
        ("",),
        1,
        "",
    ),
    "loop: offsets of an aborted transaction": (LOOP + "aborted T", ("",), 1, "aborted-offsets, unprocessed x"),
    "loop: offsets outside": ("within 0 0 T x; outside 0 1; aborted T", ("",), 1, "unprocessed x"),
    "loop: by two transactions": (
        LOOP + "committed T; within 0 0 U x; committed U",
        ("",),
        1,
        "read-again x, processed-twice x",
    ),
    "both have read from each other": (
        "produced T a; acked 0 0 a; produced U b; acked 0 1 b; crossed 0 1 T b; crossed 0 0 U a; committed T; committed U",
        ("1a 2b 1+ 2+",),
        None,
        "read-cycle a",
    ),
    "both have read from each other what was not committed": (
        "produced T a; acked 0 0 a; produced U b; acked 0 1 b; dirty-crossed 0 1 T b; dirty-crossed 0 0 U a; committed T",
        ("1a 2b 1+ 2+",),
        None,
        "",
    ),
    "the answers to two commits come in another order": (
        "within 0 0 T x; sent T 0 1; committing T; within 0 1 U y; sent U 0 2; committing U; committed U; committed T",
        ("",),
        2,
        "",
    ),
    "a commit is asked for after another one, and goes back": (
        "within 0 0 T x; within 0 1 U y; sent U 0 2; committing U; committed U; sent T 0 1; committing T; committed T",
        ("",),
        1,
        "commits-back",
    ),
    "both have written behind each other": (
        CROSSED,
        ("1a 2b 1+ 2+", "2c 1d 2+ 1+"),
        None,
        "write-cycle a",
    ),
}
"""What is planted -> the reports, the logs, where the group goes on in `in`, and what is found."""


def found(text: str, logs: dict[tuple[str, int], PartitionLog], position: int | None) -> str:
    positions = {} if position is None else {("g", "in", 0): position}
    source = {("in", 0): PartitionLog(0, 2, {0: "x", 1: "y"}, transactions={})}
    judged = judge(Tables.of(reports_of(text)), logs | source, positions, is_finished=True)
    assert judged.problems == []
    return ", ".join(f"{each.kind} {each.id}".strip() for each in judged.findings)


@pytest.mark.parametrize(("text", "logs", "position", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_planted(text: str, logs: tuple[str, ...], position: int | None, expected: str) -> None:
    assert found(text, logs_of(*logs), position) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("begun T; begun T", "transaction 'T' was there before, in line 1"),
        ("begun T; committed T; aborted T", "aborted-txn of transaction 'T', of which line 2 says committed-txn"),
    ],
)
def test_a_name_is_of_one_transaction_which_ends_once(text: str, problem: str) -> None:
    (found,) = Tables.of(reports_of(text)).problems
    assert problem in found


@pytest.mark.parametrize(
    ("position", "is_finished", "expected"),
    [(0, True, "unseen"), (0, False, "unread"), (1, True, "unprocessed"), (None, True, None)],
)
def test_what_was_read_in_an_aborted_transaction_must_be_read_again(
    position: int | None, is_finished: bool, expected: str | None
) -> None:
    text = "begun S; produced S a; acked 0 0 a; committed S; begun T; crossed 0 0 T a; aborted T"
    positions = {} if position is None else {("g", "t", 0): position}
    judged = judge(Tables.of(reports_of(text)), logs_of("1a 1+"), positions, is_finished=is_finished)
    assert [each.kind for each in judged.findings] == ([] if expected is None else [expected])


def test_who_holds_the_last_stable_offset_is_named() -> None:
    logs = logs_of("1a")
    stuck = OpenTransaction(1, 0, "billing-1", is_stuck=True, words="its time-out of 5 s is over")
    logs["t", 0] = replace(logs["t", 0], open=[stuck])
    (finding,) = judge(Tables.of([]), logs, {}, is_finished=True).findings
    assert (finding.kind, finding.topic, finding.partition, finding.offset) == ("lso-stuck", "t", 0, 0)
    assert finding.words.startswith("producer id 1 with the transactional id billing-1 holds the last stable offset: ")


def test_what_is_behind_an_open_transaction_is_not_read_yet() -> None:
    assert found("begun T; produced T a; acked 0 0 a; acked 0 1 b; read 1 0 z", logs_of("1a b", "z"), None) == (
        "unread b, open a"
    )


def test_an_older_epoch_behind_a_newer_one_is_a_zombie() -> None:
    batches = [LoggedBatch(0, 0, 7, 1, True), LoggedBatch(1, 1, 7, 2, True, False), LoggedBatch(2, 4, 7, 1, True)]
    assert unfenced_in(batches) == [Unfenced(2, 7, 1, 2)]
    logs = {("t", 0): PartitionLog(0, 5, {2: "z"}, unfenced=unfenced_in(batches))}
    (finding,) = judge(Tables.of([]), logs, {}, is_finished=True).findings
    assert (finding.kind, finding.offset, finding.id) == ("unfenced", 2, "z")


def test_a_control_record_ends_the_transaction_of_its_producer_only() -> None:
    batches = [
        LoggedBatch(0, 1, 1, 0, True),
        LoggedBatch(2, 2, 2, 0, True),
        LoggedBatch(3, 3, 1, 1, True, True),
        LoggedBatch(4, 4, 1, 1, True),
        LoggedBatch(5, 5, 9, 0, True, False),
    ]
    transactions, left = transactions_in(batches)
    outcomes = {offset: each.outcome for offset, each in transactions.items()}
    assert outcomes == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED, 2: Outcome.OPEN, 4: Outcome.OPEN}
    assert [(each.producer_id, each.first_offset) for each in left] == [(2, 2), (1, 4)]


def test_readers_wait_from_the_commit_on_and_not_for_aborted_records() -> None:
    text = "begun T; produced T a; acked 0 0 a; goes-on 0 0; goes-on 0 0; committed T; read 0 0 a"
    outages = outages_of(Tables.of(reports_of(text)), logs_of("1a 1+"), 9)
    assert [(each.began, each.ended) for each in outages if each.group] == [(5, 6)]
    aborted = text.replace("committed T; read 0 0 a", "aborted T")
    outages = outages_of(Tables.of(reports_of(aborted)), logs_of("1a 1-"), 9)
    assert not [each for each in outages if each.group]


@pytest.mark.parametrize(
    ("text", "log"),
    [
        ("begun T; produced T a; acked-in 0 -1 T a; aborted T; goes-on 0 0", "1a 1-"),
        ("begun T; produced T a; acked-in 0 -1 T a; goes-on 0 0", "1a"),
        ("begun T; produced T a; committing T; committed T", "1a 1+"),
        ("begun T; produced T a; aborted T", "1a 1-"),
    ],
)
def test_nothing_waits_for_what_nobody_reads_and_for_what_the_end_of_its_transaction_answers(
    text: str, log: str
) -> None:
    client = Client.of("program", reports_of(text), logs_of(log), {}, 30.0, is_finished=True)
    verdict = conclude(30.0, [client], [], [])
    assert verdict.exit_code == (INCOMPLETE if text.endswith("aborted T") else CLEAN)
    assert not [each for each in client.outages if each.is_open]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[str], list[list[str]], dict[str, bool]]:
    """The reports of transactions of three producers that interleave in two partitions, the logs, and which were committed.

    Everything committed is read once it is.
    """
    text: list[str] = []
    logs: list[list[str]] = [[], []]
    running: dict[int, list[tuple[int, int, str]]] = {}
    names: dict[int, str] = {}
    outcomes: dict[str, bool] = {}
    for number in range(draw(st.integers(1, 25))):
        producer = draw(st.integers(1, 3))
        if producer not in running:
            running[producer], names[producer] = [], f"T{number}"
            text.append(f"begun T{number}")
        elif running[producer] and draw(st.booleans()):
            _end(producer, draw(st.booleans()), text, logs, running, outcomes, names)
            continue
        partition = draw(st.integers(0, 1))
        offset = len(logs[partition])
        logs[partition].append(f"{producer}r{number}x")
        text += [f"produced {names[producer]} r{number}x", f"acked {partition} {offset} r{number}x"]
        running[producer].append((partition, offset, f"r{number}x"))
    for producer in list(running):
        _end(producer, draw(st.booleans()), text, logs, running, outcomes, names)
    return text, logs, outcomes


def _end(
    producer: int,
    commits: bool,
    text: list[str],
    logs: list[list[str]],
    running: dict[int, list[tuple[int, int, str]]],
    outcomes: dict[str, bool],
    names: dict[int, str],
) -> None:
    records, name = running.pop(producer), names[producer]
    for partition in {partition for partition, _, _ in records}:
        logs[partition].append(f"{producer}{'+' if commits else '-'}")
    outcomes[name] = commits
    text += [f"committing {name}", f"committed {name}"] if commits else [f"aborted {name}"]
    text += [f"read {partition} {offset} {id_}" for partition, offset, id_ in records if commits]


@given(histories())
def test_a_right_history_has_no_findings(history: tuple[list[str], list[list[str]], dict[str, bool]]) -> None:
    """Except that transactions may write behind each other in a circle, as Kafka lets them."""
    text, logs, _ = history
    judged = judge(
        Tables.of(reports_of("; ".join(text))), logs_of(*(" ".join(log) for log in logs)), {}, is_finished=True
    )
    assert judged.problems == []
    assert {each.kind for each in judged.findings} <= {"write-cycle"} <= HARMLESS


History = tuple[list[str], list[str], int, list[tuple[int, int]]]
"""The reports, the logs, where the group goes on in `in`, and the partition and offset of each record that is certainly committed."""


@st.composite
def broken_histories(draw: st.DrawFn) -> History:
    """A right program whose answers get lost.

    A transaction reads the next record of `in`, writes some records, new ones or those of a transaction that was aborted before, and sends
    its offset. Acknowledgements may be without an offset or missing, records may fail and be in the log or not, a commit may be asked for
    twice, its answer may be missing: then the log says how it ended. The next transaction begins with the next producer id then.
    """
    text: list[str] = []
    logs: list[list[str]] = [[], []]
    to_do: list[str] = []
    position, producer = 0, 1
    committed: list[tuple[int, int]] = []
    for number in range(draw(st.integers(1, 8))):
        name = f"T{number}"
        text += [f"begun {name}", f"within 0 {position} {name} in-{position}"]
        ids = [each for each in to_do if draw(st.booleans())] + [f"r{number}x", f"r{number}y"][
            : draw(st.integers(0, 2))
        ]
        end = draw(st.sampled_from(["commit", "abort", "unknown commit", "unknown abort"]))
        places: dict[str, tuple[int, int]] = {}
        for id_ in ids:
            partition = draw(st.integers(0, 1))
            places[id_] = (partition, len(logs[partition]))
            text.append(f"produced {name} {id_}")
            answer = draw(st.sampled_from(["acked", "without offset", "missing", *(["failed"] * (end != "commit"))]))
            if answer != "failed" or draw(st.booleans()):
                logs[partition].append(f"{producer}{id_}")
            text += {
                "acked": [f"acked-in {partition} {places[id_][1]} {name} {id_}"],
                "without offset": [f"acked-in {partition} -1 {name} {id_}"],
                "missing": [],
                "failed": [f"failed-in {name} {id_}"],
            }[answer]
        text.append(f"sent {name} 0 {position + 1}")
        if end != "abort":
            text += [f"committing {name}"] * draw(st.integers(1, 2))
        for partition in {partition for partition, _ in places.values()}:
            if logs[partition] and logs[partition][-1][1:] not in ("+", "-"):
                logs[partition].append(f"{producer}{'-' if 'abort' in end else '+'}")
        of = producer
        if "unknown" not in end:
            text.append(f"committed {name}" if end == "commit" else f"aborted {name}")
        else:
            producer += 1
        if "abort" not in end:
            position += 1
            to_do = [each for each in to_do if each not in ids]
            written = {id_: place for id_, place in places.items() if logs[place[0]][place[1] :][:1] == [f"{of}{id_}"]}
            text += [f"read {partition} {at} {id_}" for id_, (partition, at) in written.items()]
            committed += written.values() if end == "commit" else ()
        else:
            to_do += [each for each in ids if each not in to_do]
    return text, [" ".join(log) for log in logs], position, committed


def judged_of(text: list[str], logs: list[str], position: int, lost: tuple[int, int] | None = None) -> Counter[str]:
    """`lost`: the partition and the offset of a record that the log does not have."""
    found = {**logs_of(*logs), ("in", 0): PartitionLog(0, 100, {at: f"in-{at}" for at in range(100)}, transactions={})}
    if lost is not None:
        log = found["t", lost[0]]
        found["t", lost[0]] = replace(log, ids={at: id_ for at, id_ in log.ids.items() if at != lost[1]})
    positions = {("g", "in", 0): position or NO_POSITION}
    judged = judge(Tables.of(reports_of("; ".join(text))), found, positions, is_finished=True)
    assert judged.problems == []
    return Counter(each.kind for each in judged.findings)


@given(broken_histories())
def test_a_right_program_whose_answers_get_lost_has_no_findings(history: History) -> None:
    text, logs, position, _ = history
    assert set(judged_of(text, logs, position)) <= HARMLESS


@given(broken_histories(), st.data())
def test_a_lost_record_of_a_commit_is_found(history: History, data: st.DataObject) -> None:
    """Whether its acknowledgement has come or not, and whether it was written before in a transaction that was aborted."""
    text, logs, position, committed = history
    assume(committed)
    kinds = judged_of(text, logs, position, data.draw(st.sampled_from(committed)))
    assert kinds["lost"] + kinds["moved"] == 1
    assert kinds["vanished"] == 1


@given(histories(), st.data())
def test_another_end_is_found(history: tuple[list[str], list[list[str]], dict[str, bool]], data: st.DataObject) -> None:
    """One control record says the opposite: its transaction is torn, or has another end than its program was told."""
    text, logs, outcomes = history
    markers = [(number, at) for number, log in enumerate(logs) for at, word in enumerate(log) if word[1:] in ("+", "-")]
    number, at = data.draw(st.sampled_from(markers))
    word = logs[number][at]
    logs[number][at] = word[0] + ("-" if word[1] == "+" else "+")
    judged = judge(
        Tables.of(reports_of("; ".join(text))), logs_of(*(" ".join(log) for log in logs)), {}, is_finished=True
    )
    kinds = Counter(each.kind for each in judged.findings)
    assert kinds["torn"] + kinds["undone"] + kinds["revived"] == 1
    if kinds["undone"]:
        assert kinds["aborted-read"] > 0
    if kinds["revived"]:
        assert kinds["unseen"] > 0 or not any("read" in line for line in text)
    assert len(outcomes) > 0
