"""Planted partitions with two owners and with none: the judge finds them, and nothing else (INV-24)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tools.judge.tables import reports_of
from tools.judge.judgement import judge
from tools.judge.reports import Report
from tools.judge.tables import Tables
from tools.judge.verdict import Client, conclude

UNOWNED_S = 4.5
"""The reports below are a second apart."""
PLANTED: dict[str, tuple[str, str]] = {
    "given up, then taken": ("assigned m 0; revoked m 0; assigned n 0; left n", ""),
    "taken too early": ("assigned m 0; assigned n 0; revoked m 0", "owned-twice 0"),
    "another partition": ("assigned m 0; assigned n 1; left m; left n", ""),
    "assigned again to its owner": ("assigned m 0; assigned m 0; revoked m 0; assigned n 0", ""),
    "its owner has left": ("assigned m 0; assigned m 1; left m; assigned n 0; assigned n 1", ""),
    "another has left": ("assigned m 0; left x; assigned n 0", "owned-twice 0"),
    "revoked by another": ("assigned m 0; revoked x 0; assigned n 0", "owned-twice 0"),
    "three owners": ("assigned m 0; assigned n 0; assigned o 0", "owned-twice 0, owned-twice 0"),
    "taken late": (
        "assigned m 0; assigned x 1; revoked m 0; left q; left q; left q; left q; assigned n 0",
        "unowned 0",
    ),
    "never taken": ("assigned m 0; assigned x 1; revoked m 0; left q; left q; left q; left q; left x", "unowned 0"),
    "never taken, and nobody is left": (
        "assigned m 0; revoked m 0; left q; left q; left q; left q; left q; left q",
        "",
    ),
    "the last members leave together": ("assigned m 0; assigned n 1; left m; left n", ""),
}


@pytest.mark.parametrize(("reports", "expected"), PLANTED.values(), ids=list(PLANTED))
def test_planted(reports: str, expected: str) -> None:
    judged = judge(Tables.of(reports_of(reports)), {}, {}, is_finished=True, unowned_s=UNOWNED_S)
    assert ", ".join(f"{each.kind} {each.partition}" for each in judged.findings) == expected
    assert judged.problems == []


def test_groups_have_owners_of_their_own() -> None:
    first, second = reports_of("assigned m 0; assigned n 0")
    judged = judge(Tables.of([first, replace(second, group="h")]), {}, {}, is_finished=True)
    assert judged.findings == []


def test_two_owners_fail_a_run() -> None:
    reports: list[Report] = reports_of("assigned m 0; assigned n 0")
    verdict = conclude(2.0, [Client.of("your program", reports, {}, {}, 2.0)], [], [])
    assert (verdict.exit_code, verdict.headline) == (1, "1 owned-twice")
    (finding,) = verdict.judgements[0].findings
    assert finding.words == "n of group g got it; m has it since line 1"
