"""What must hold, as CI reads it: JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

PASSED, FAILED, NOT_VERIFIED, SKIPPED = "passed", "failed", "not verified", "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One criterion. `problem`: what is wrong, or None; `unverified`: why nobody knows whether it holds, or None; `skipped`: why it was
    left out, or None.
    """

    name: str
    problem: str | None = None
    evidence: Sequence[Mapping[str, Any]] = ()
    unverified: str | None = None
    skipped: str | None = None
    took_s: float | None = None

    @property
    def result(self) -> str:
        """PASSED, FAILED, ... A check that has failed counts as failed even if a part of it could not be verified."""
        for result, reason in ((FAILED, self.problem), (NOT_VERIFIED, self.unverified), (SKIPPED, self.skipped)):
            if reason is not None:
                return result
        return PASSED

    @property
    def reason(self) -> str | None:
        """Why it has not passed."""
        return next((each for each in (self.problem, self.unverified, self.skipped) if each is not None), None)


def junit(suite: str, checks: Sequence[Check], took_s: float | None = None) -> str:
    """JUnit XML with one test case for each check. What could not be verified is an error: only a failure or an error stops a CI."""
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check.result == FAILED for check in checks)),
        "errors": str(sum(check.result == NOT_VERIFIED for check in checks)),
        "skipped": str(sum(check.result == SKIPPED for check in checks)),
    }
    top = ElementTree.Element("testsuites")
    inner = ElementTree.SubElement(top, "testsuite", {"name": _xml(suite), **counts, **_time(took_s)})
    for check in checks:
        named = {"classname": _xml(suite), "name": _xml(check.name)}
        case = ElementTree.SubElement(inner, "testcase", named | _time(check.took_s))
        if check.reason is not None:
            kind = {FAILED: "failure", NOT_VERIFIED: "error", SKIPPED: "skipped"}[check.result]
            ElementTree.SubElement(case, kind, {"message": _xml(check.reason)}).text = _xml(
                "\n".join(", ".join(f"{name} {value}" for name, value in row.items()) for row in check.evidence)
            )
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _time(took_s: float | None) -> dict[str, str]:
    return {} if took_s is None else {"time": f"{took_s:.3f}"}


def _xml(text: str) -> str:
    """Without the characters that XML cannot say."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
