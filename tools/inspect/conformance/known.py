"""Differences that are known and stay: a file that the tool reads, and from which docs/CONFORMANCE.md is made. Pure.

An entry of the file has

    apis      Kafka's names of the APIs, or "*"
    cases     patterns of the names of cases, "*" if left out
    paths     patterns of the places in an answer, "*" if left out
    versions  such as "0-3" or "7", all if left out
    differs   what differs, in words
    why       the reason

A pattern has `*` for any text. A difference is known if one entry fits it in all five.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from protocol.numbers import is_plain_number

FIELDS = ("apis", "cases", "paths", "versions", "differs", "why")


class BadKnownDifferences(ValueError):
    """The file is not a list of known differences."""


@dataclass(frozen=True)
class Known:
    """One entry. `versions` None: all."""

    apis: tuple[str, ...]
    differs: str
    why: str
    cases: tuple[str, ...] = ("*",)
    paths: tuple[str, ...] = ("*",)
    versions: tuple[int, int] | None = None

    def fits(self, api: str, version: int | None, case: str, path: str) -> bool:
        """`version` None: the difference is not of a version."""
        if self.versions is not None and (version is None or not self.versions[0] <= version <= self.versions[1]):
            return False
        return _fits_any(self.apis, api) and _fits_any(self.cases, case) and _fits_any(self.paths, path)


def parse_known(rows: Any) -> tuple[Known, ...]:
    """The entries of a parsed file. Raises BadKnownDifferences."""
    if not isinstance(rows, list):
        raise BadKnownDifferences("expected a list of entries")
    return tuple(_parse(number, row) for number, row in enumerate(rows, 1))


def _parse(number: int, row: Any) -> Known:
    if not isinstance(row, Mapping) or not {"apis", "differs", "why"} <= set(row) <= set(FIELDS):
        raise BadKnownDifferences(
            f"entry {number}: expected apis, differs and why, and perhaps cases, paths and versions"
        )
    values = {name: _texts(number, name, row[name]) for name in ("apis", "cases", "paths") if name in row}
    return Known(
        **values,
        differs=str(row["differs"]),
        why=str(row["why"]),
        versions=_versions(number, str(row["versions"])) if "versions" in row else None,
    )


def _texts(number: int, name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadKnownDifferences(f"entry {number}: {name} is neither a text nor a list of texts")
    return tuple(texts)


def _versions(number: int, text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    last = last or first
    if not (is_plain_number(first) and is_plain_number(last)):
        raise BadKnownDifferences(f"entry {number}: versions {text!r}: expected a number, or two such as 0-3")
    return int(first), int(last)


def _fits_any(patterns: Iterable[str], text: str) -> bool:
    return any(_pattern(pattern).fullmatch(text) for pattern in patterns)


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """Only `*` is special: cases and paths have brackets, which `fnmatch` would take for sets."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def known_rows(entries: Sequence[Known]) -> list[tuple[str, str, str, str]]:
    """(APIs, versions, what differs, why) of each entry, for a table."""
    return [
        (
            "all" if "*" in entry.apis else ", ".join(entry.apis),
            "all" if entry.versions is None else shown_versions(range(entry.versions[0], entry.versions[1] + 1)),
            entry.differs,
            entry.why,
        )
        for entry in entries
    ]


def shown_versions(versions: Iterable[int]) -> str:
    """Such as `0-3, 5`."""
    runs: list[list[int]] = []
    for version in sorted(set(versions)):
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
