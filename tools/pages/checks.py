"""What must hold, as CI reads it: JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

PASSED, FAILED, NOT_VERIFIED = "passed", "failed", "not verified"


@dataclass(frozen=True, slots=True)
class Check:
    """One criterion. `problem`: what is wrong, or None; `unverified`: why nobody knows whether it holds, or None."""

    name: str
    problem: str | None = None
    evidence: Sequence[Mapping[str, Any]] = ()
    unverified: str | None = None

    @property
    def result(self) -> str:
        """PASSED, FAILED or NOT_VERIFIED. A check that has failed counts as failed even if a part of it could not be verified."""
        if self.problem is not None:
            return FAILED
        return PASSED if self.unverified is None else NOT_VERIFIED

    @property
    def reason(self) -> str | None:
        """Why it has not passed."""
        return self.unverified if self.problem is None else self.problem


def junit(suite: str, checks: Sequence[Check], took_s: float | None = None) -> str:
    """JUnit XML with one test case for each check. What could not be verified is an error: only a failure or an error stops a CI."""
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check.result == FAILED for check in checks)),
        "errors": str(sum(check.result == NOT_VERIFIED for check in checks)),
    }
    time = {} if took_s is None else {"time": f"{took_s:.3f}"}
    top = ElementTree.Element("testsuites")
    inner = ElementTree.SubElement(top, "testsuite", {"name": _xml(suite), **counts, **time})
    for check in checks:
        case = ElementTree.SubElement(inner, "testcase", {"classname": _xml(suite), "name": _xml(check.name)})
        if check.reason is not None:
            kind = "failure" if check.result == FAILED else "error"
            ElementTree.SubElement(case, kind, {"message": _xml(check.reason)}).text = _xml(
                "\n".join(", ".join(f"{name} {value}" for name, value in row.items()) for row in check.evidence)
            )
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML cannot say."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
