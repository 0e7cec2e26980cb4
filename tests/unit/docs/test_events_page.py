"""docs/EVENTS.md has every kind of event that the code writes, with its fields, and no other; and `ottla timeline` can tell each."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.docs.pages import ROOT, rows, text_of
from tools.cluster.local_cluster import FAULTS
from tools.timeline.sentences import SENTENCES

PAGE = ROOT / "docs" / "EVENTS.md"
SOURCES = ("broker", "controller", "tools/cluster", "tools/faults")
WRITERS = {"write", "_write", "_write_event", "_events", "_line", "_PartitionResults"}
"""The names of functions that write an event, and get its kind as their first or second argument."""
KIND = re.compile(r"[a-z]+(_[a-z]+)*")
NAME = re.compile(r"`(\w+)`")


def calls() -> Iterator[tuple[str, set[str]]]:
    """(kind, names of its fields that stand in the call)"""
    for module in (path for source in SOURCES for path in Path(ROOT, source).rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(module))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if name in WRITERS and texts and KIND.fullmatch(texts[0]):
                yield texts[0], {keyword.arg for keyword in node.keywords if keyword.arg is not None}


@functools.cache
def written() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {kind: {"broker"} for kind in FAULTS.values()}
    for kind, fields in calls():
        found.setdefault(kind, set()).update(fields)
    return found


@functools.cache
def documented() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kinds, fields, _ in rows(text_of(PAGE)):
        for kind in NAME.findall(kinds):
            assert kind not in found, f"{kind} is on the page twice"
            found[kind] = set(NAME.findall(fields))
    return found


def test_every_kind_that_is_written_is_documented_and_the_reverse() -> None:
    assert set(written()) == set(documented())
    assert len(written()) > 60


def test_the_fields_that_stand_in_the_code_are_documented() -> None:
    passed_on = {"time_ms"}  # FaultLog.write: when it happened
    missing = {kind: fields - documented()[kind] - passed_on for kind, fields in written().items()}
    assert {kind: fields for kind, fields in missing.items() if fields} == {}


def test_the_timeline_has_a_sentence_for_every_kind() -> None:
    assert set(SENTENCES) == set(documented())


def test_the_scan_finds_kinds_that_are_not_written_plainly() -> None:
    """Through a helper, a callback, or a class."""
    assert {"leader_and_isr", "groups_loaded", "loop_held", "log_uncleanable", "events_dropped"} <= set(written())
