"""docs/RULES.md has every rule id that the repository names, and names no other without saying that it is not done."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "RULES.md"
NOT_RULES = {"CRC", "KIP", "SHA", "UTF"}
SUFFIXES = {".cfg", ".json", ".md", ".py", ".toml", ".txt", ".yml"}
SKIPPED = {"build", "demo-out", "ottla-cluster", "replay-out", "requirements"}

RULE = re.compile(r"\b([A-Z]{3})-(\d+)\b(?!-\d)")
RANGE = re.compile(r"(?:\.\.| to (?:[A-Z]{3}-)?)(\d+)")
FURTHER = re.compile(r"(?:, | and |/)(\d{1,2})(?=[\s,.;:)\"/]|$)")


def ids_in(text: str) -> Iterator[str]:
    """The ids in a text, also in the forms `LOG-1..3`, `FLT-9 to FLT-15`, `BAD-10, 11` and `INV-4/25`."""
    for found in RULE.finditer(text):
        kind, first = found[1], int(found[2])
        if kind in NOT_RULES:
            continue
        yield f"{kind}-{first}"
        at, last = found.end(), first
        while (more := RANGE.match(text, at)) or (more := FURTHER.match(text, at)):
            number = int(more[1])
            numbers = range(last + 1, number + 1) if more.re is RANGE else [number]
            yield from (f"{kind}-{each}" for each in numbers)
            at, last = more.end(), number


@functools.cache
def texts() -> dict[str, str]:
    """The repository's texts, by path."""
    found = {}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for path in (Path(folder, name) for name in files):
            if path.suffix in SUFFIXES and path not in (PAGE, Path(__file__)):
                found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8", errors="replace")
    return found


@functools.cache
def used() -> dict[str, str]:
    """Each id with one file that names it."""
    return {rule: path for path, text in texts().items() for rule in ids_in(text)}


def rows() -> list[tuple[str, str]]:
    return re.findall(r"^\| ([A-Z]{3}-\d+) \| (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_ids_are_found_in_every_way_they_are_written() -> None:
    assert list(ids_in("(BAD-1..3, 10, 11, REP-6)")) == ["BAD-1", "BAD-2", "BAD-3", "BAD-10", "BAD-11", "REP-6"]
    assert list(ids_in("FLT-9 to FLT-11 and INV-4/25.")) == ["FLT-9", "FLT-10", "FLT-11", "FLT-11", "INV-4", "INV-25"]
    assert list(ids_in("KIP-227, UTF-8, CRC-32C, FLT-5, 100 ms")) == ["FLT-5"]


def test_every_id_that_is_used_is_on_the_page() -> None:
    known = {rule for rule, _ in rows()}
    assert {rule: place for rule, place in used().items() if rule not in known} == {}


def test_every_id_on_the_page_is_used_or_not_done() -> None:
    places = used()
    unused = [rule for rule, text in rows() if rule not in places and "*Not done" not in text]
    assert unused == [], "use it, mark it as *Not done*, or take it off the page"


def test_no_id_is_on_the_page_twice() -> None:
    names = [rule for rule, _ in rows()]
    assert len(names) == len(set(names)) > 150


def test_nothing_points_to_what_a_reader_does_not_have() -> None:
    """No issue numbers, and no files outside of the repository. The issues of other projects say whose they are."""
    outside = re.compile(
        r"(?<!'s )(?<!\bits )\bissue \d|\bfinding \d|\.\./shared|\breference/\w|kafka-details", re.IGNORECASE
    )
    assert [f"{path}: {found[0]}" for path, text in texts().items() for found in outside.finditer(text)] == []
