"""The report card of a program: a row for each recipe, with what became of its records there. As text, JSON and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.judge.kinds import KINDS
from tools.judge.lines import evidence
from tools.judge.verdict import CLEAN, EXAMPLES, FOUND, INCOMPLETE, Verdict
from tools.pages.checks import Check, junit
from tools.pages.units import count
from tools.verify.recipes import RECIPES

PASSED, FAILED, NOT_WHOLE, NOT_TRIED = "passed", "FAILED", "incomplete", "not tried"
NO_REQUEST = "the program sent no such request"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one recipe. `hits`: requests that its rules have hit; None: it has no rules about requests.

    `verdict` is None if the program did not run to its end: `not_tried` says why the recipe was left out, else `problem` what went wrong.
    """

    name: str
    verdict: Verdict | None
    hits: int | None = None
    not_tried: str = ""
    problem: str = ""

    @property
    def result(self) -> str:
        """PASSED, FAILED, NOT_WHOLE or NOT_TRIED."""
        if self.verdict is None:
            return NOT_TRIED if self.not_tried else NOT_WHOLE
        if self.verdict.exit_code != CLEAN:
            return FAILED if self.verdict.exit_code == FOUND else NOT_WHOLE
        return NOT_TRIED if self.hits == 0 else PASSED

    @property
    def reason(self) -> str:
        """Why it has not passed; empty if it has."""
        if self.verdict is None:
            return self.not_tried or self.problem
        if self.verdict.exit_code == FOUND:
            return self.verdict.headline
        return next(iter(self.verdict.incomplete), NO_REQUEST if self.hits == 0 else "")

    @property
    def words(self) -> str:
        """`FAILED: 3 lost`."""
        return f"{self.result}: {self.reason}" if self.reason else self.result

    @property
    def cells(self) -> tuple[str, str, str]:
        """The hits, and for how long nothing was written and read, in seconds."""
        hits = "-" if self.hits is None else str(self.hits)
        return (
            (hits, f"{self.writes_s:.2f} s", f"{self.reads_s:.2f} s") if self.verdict is not None else ("-", "-", "-")
        )

    @property
    def writes_s(self) -> float:
        return max((each.cost.writes_s for each in self.verdict.faults), default=0.0) if self.verdict else 0.0

    @property
    def reads_s(self) -> float:
        return max((each.cost.reads_s for each in self.verdict.faults), default=0.0) if self.verdict else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.name,
            "what": RECIPES[self.name].what,
            "right": RECIPES[self.name].right,
            "result": self.result.lower(),
            "reason": self.reason,
            "hits": self.hits,
            "writes_out_s": self.writes_s,
            "reads_out_s": self.reads_s,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }


def exit_code(rows: Sequence[Row]) -> int:
    """1: a recipe has failed. 2: one is incomplete, or nothing ran. What was not tried does not count."""
    codes = [INCOMPLETE if row.verdict is None else row.verdict.exit_code for row in rows if not row.not_tried]
    return FOUND if FOUND in codes else max(codes, default=INCOMPLETE)


def card_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The table, for a terminal."""
    yield f"{'RECIPE':<19}{'HITS':>5}  {'NO WRITES':>9}  {'NO READS':>9}  RESULT"
    for row in rows:
        hits, writes, reads = row.cells
        yield f"{row.name:<19}{hits:>5}  {writes:>9}  {reads:>9}  {row.words}"


def card_json(rows: Sequence[Row], command: str) -> str:
    """`command`: the program, as it is typed."""
    found = {"command": command, "exit_code": exit_code(rows), "recipes": [row.to_json() for row in rows]}
    return json.dumps(found, indent=2) + "\n"


def card_junit(rows: Sequence[Row]) -> str:
    """A case for each recipe: what was not tried is skipped, and what is incomplete is an error."""
    return junit(
        "ottla.recipes", [_check(row) for row in rows], sum(row.verdict.seconds for row in rows if row.verdict)
    )


def _check(row: Row) -> Check:
    reason = {row.result: row.reason}
    judgements = [each for each in row.verdict.judgements if each.is_failure] if row.verdict is not None else []
    return Check(
        row.name,
        reason.get(FAILED),
        [
            {
                "client": each.client,
                "found": f"{count(each.count)} {each.kind} ({KINDS[each.kind]})",
                "evidence": evidence(one),
            }
            for each in judgements
            for one in each.findings[:EXAMPLES]
        ],
        reason.get(NOT_WHOLE),
        reason.get(NOT_TRIED),
        row.verdict.seconds if row.verdict is not None else None,
    )
