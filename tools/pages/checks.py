"""What must hold, as CI reads it: JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Check:
    """One criterion. `problem`: what is wrong, or None; `unverified`: why nobody knows whether it holds, or None."""

    name: str
    problem: str | None = None
    evidence: Sequence[Mapping[str, Any]] = ()
    unverified: str | None = None


def junit(suite: str, checks: Sequence[Check], took_s: float | None = None) -> str:
    """JUnit XML with one test case for each check. What could not be verified is an error: only a failure or an error stops a CI."""
    counts = {
        "tests": str(len(checks)),
        "failures": str(sum(check.problem is not None for check in checks)),
        "errors": str(sum(check.problem is None and check.unverified is not None for check in checks)),
    }
    time = {} if took_s is None else {"time": f"{took_s:.3f}"}
    top = ElementTree.Element("testsuites")
    inner = ElementTree.SubElement(top, "testsuite", {"name": _xml(suite), **counts, **time})
    for check in checks:
        case = ElementTree.SubElement(inner, "testcase", {"classname": _xml(suite), "name": _xml(check.name)})
        words = check.unverified if check.problem is None else check.problem
        if words is not None:
            kind = "error" if check.problem is None else "failure"
            ElementTree.SubElement(case, kind, {"message": _xml(words)}).text = _xml(
                "\n".join(", ".join(f"{name} {value}" for name, value in row.items()) for row in check.evidence)
            )
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML cannot say."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
