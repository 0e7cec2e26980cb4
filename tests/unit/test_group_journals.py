"""What the members of the chaos of groups note becomes reports that are judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_journals import JournalFile, reports_of
from tools.judge.judgement import judge
from tools.judge.logs import PartitionLog
from tools.judge.tables import Tables


def journal(path: Path, *lines: dict[str, Any]) -> JournalFile:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = JournalFile(path)
    found.read()
    return found


def test_what_members_note_is_judged_in_the_order_of_their_requests(tmp_path: Path) -> None:
    """The first member stands still after its commit, and notes the answer when the second one has committed, too."""
    first = journal(
        tmp_path / "first.journal",
        {"what": "processed", "at": 10.0, "partition": 0, "first": 0, "last": 2},
        {"what": "committed", "at": 19.0, "since": 10.5, "offsets": {"0": 3}},
    )
    second = journal(
        tmp_path / "second.journal",
        {"what": "processed", "at": 15.0, "partition": 0, "first": 2, "last": 2},
        {"what": "committed", "at": 15.2, "since": 15.1, "offsets": {"0": 4}},
    )
    ids = {(0, offset): f"record-{offset}" for offset in range(4)}
    reports = reports_of([first, second], "g", "t", ids, 10.0)
    assert [(report.event, report.at) for report in reports] == [
        *[("consumed", 0.0)] * 3,
        ("committed", 0.5),
        ("consumed", 5.0),
        ("committed", pytest.approx(5.1)),
    ]
    log = {("t", 0): PartitionLog(0, 4, {offset: id_ for (_, offset), id_ in ids.items()})}
    found = judge(Tables.of(reports), log, {("g", "t", 0): 4}, is_finished=True).findings
    assert [(each.kind, each.id) for each in found] == [("read-again", "record-2"), ("commits-ahead", "record-3")]
