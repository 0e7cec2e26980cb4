"""What a comparison found: known and other differences, as text and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tools.inspect.conformance.known import Known, shown_versions
from tools.inspect.conformance.normalising import Plain

VALUE_CHARACTERS_MAX = 100
CASES_SHOWN = 4


class Found(NamedTuple):
    """One difference. `version` None: of the API as a whole."""

    api: str
    version: int | None
    case: str
    path: str
    reference: Plain
    subject: Plain


class Grouped(NamedTuple):
    """The same difference in several versions and cases."""

    api: str
    versions: str
    cases: list[str]
    path: str
    reference: Plain
    subject: Plain


class Sorted(NamedTuple):
    """`unused`: entries of the list of known differences that fit nothing."""

    other: list[Found]
    known: list[Found]
    unused: list[Known]


def sort_out(found: Sequence[Found], entries: Sequence[Known]) -> Sorted:
    """Separates the known differences from the others."""
    used: set[int] = set()
    result = Sorted([], [], [])
    for one in found:
        fitting = [n for n, entry in enumerate(entries) if entry.fits(one.api, one.version, one.case, one.path)]
        used.update(fitting)
        (result.known if fitting else result.other).append(one)
    result.unused.extend(entry for number, entry in enumerate(entries) if number not in used)
    return result


def grouped(found: Sequence[Found]) -> list[Grouped]:
    """Differences that are equal but for version and case, as one."""
    versions: dict[tuple[Any, ...], list[int]] = {}
    cases: dict[tuple[Any, ...], dict[str, None]] = {}
    first: dict[tuple[Any, ...], Found] = {}
    for one in found:
        key = (one.api, one.path, repr(one.reference), repr(one.subject))
        first.setdefault(key, one)
        cases.setdefault(key, {})[one.case] = None
        if one.version is not None:
            versions.setdefault(key, []).append(one.version)
    return [
        Grouped(
            one.api,
            shown_versions(versions.get(key, ())),
            list(cases[key]),
            one.path,
            one.reference,
            one.subject,
        )
        for key, one in first.items()
    ]


def difference_lines(found: Sequence[Found]) -> Iterator[str]:
    """One API after the other, each difference in two lines."""
    api = None
    for one in grouped(found):
        if one.api != api:
            api = one.api
            yield from (("",) if api else ())
            yield api
        version = f"v{one.versions}  " if one.versions else ""
        yield f"  {version}{one.path}: reference {shown(one.reference)}, subject {shown(one.subject)}"
        more = len(one.cases) - CASES_SHOWN
        yield f"      {'; '.join(one.cases[:CASES_SHOWN])}{f'; and {more} more' if more > 0 else ''}"


def difference_json(found: Sequence[Found]) -> list[dict[str, Any]]:
    return [
        {
            "api": one.api,
            "versions": one.versions or None,
            "cases": one.cases,
            "path": one.path,
            "reference": one.reference,
            "subject": one.subject,
        }
        for one in grouped(found)
    ]


def shown(value: Plain) -> str:
    """In one line, cut off if it is long."""
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 3] + "..."
