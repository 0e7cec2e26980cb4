"""`.test-logs/clients.json`: what came of each cell of the matrix, of the frameworks, and of the report cards. A run updates its cells."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cards import Result
from tests.clients.clients import REPOSITORY, Client

API_LEVEL = os.environ.get("OTTLA_TEST_API_LEVEL", "4")
"""Whose APIs the brokers of the matrix have. The results of a run with others than the default are not for docs/CLIENTS.md."""
FILE = REPOSITORY / ".test-logs" / ("clients.json" if API_LEVEL == "4" else f"clients-at-{API_LEVEL}.json")
CLIENTS, FRAMEWORKS, CARDS = "clients", "frameworks", "cards"
PASSED, UNSUPPORTED, SKIPPED, FAILED = "passed", "unsupported", "skipped", "failed"
AGAIN = "again"
"""In a report card: a supervisor had to start the program again."""

_lock = threading.Lock()


def load(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """{"clients"|"frameworks"|"cards": {name: {"language", "version", "cells": {feature: {"result", "reason"}}}}}"""
    loaded: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {CLIENTS: {}, FRAMEWORKS: {}, CARDS: {}, **loaded}


def merged(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The results of several runs. Of a cell that several have, the last one counts, unless it is SKIPPED."""
    everything: dict[str, dict[str, Any]] = {CLIENTS: {}, FRAMEWORKS: {}, CARDS: {}}
    for file in files:
        for table, rows in load(file).items():
            for name, row in rows.items():
                known = everything[table].setdefault(name, {"language": row["language"], "version": "", "cells": {}})
                known["version"] = row["version"] or known["version"]
                for feature, cell in row["cells"].items():
                    if cell["result"] != SKIPPED or feature not in known["cells"]:
                        known["cells"][feature] = cell
    return everything


def record(table: str, name: str, *, language: str, version: str, feature: str, result: str, reason: str = "") -> None:
    """Writes one cell. `reason` says why the result is not PASSED, or what PASSED leaves out; its first line is kept."""
    with _lock:
        everything = load()
        row = everything[table].setdefault(name, {"cells": {}})
        row["language"], row["version"] = language, version
        row["cells"][feature] = {"result": result, "reason": (reason.splitlines() or [""])[0]}
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(everything, indent=1), encoding="utf-8")


def record_card(client: Client, recipe: str, result: Result) -> None:
    """A cell of a report card. `reason` of a passed one: the longest times without an acknowledgement and without a read, in seconds."""
    if result.found:
        word, reason = FAILED, client.fails.get(recipe, result.found[0])
    elif result.again:
        word, reason = AGAIN, client.stops.get(recipe, "a program of it was started again")
    elif not result.is_tried:
        word, reason = UNSUPPORTED, ""
    else:
        word, reason = PASSED, f"{result.writes_s:.1f} / {result.reads_s:.1f}"
    row = {"language": client.language, "version": client.version(), "feature": recipe}
    record(CARDS, client.name, **row, result=word, reason=reason)


@contextlib.contextmanager
def recording(table: str, name: str, *, language: str, version: str, feature: str) -> Iterator[None]:
    """Records the block as PASSED, SKIPPED (pytest.skip) or FAILED."""
    row = {"language": language, "version": version, "feature": feature}
    try:
        yield
    except pytest.skip.Exception as reason:
        record(table, name, **row, result=SKIPPED, reason=str(reason))
        raise
    except BaseException as problem:
        record(table, name, **row, result=FAILED, reason=str(problem) or type(problem).__name__)
        raise
    record(table, name, **row, result=PASSED)


@contextlib.contextmanager
def recording_framework(framework: Client, feature: str) -> Iterator[None]:
    """As `recording`. Skips the test without the framework."""
    missing = framework.why_not()
    version = "" if missing else framework.version()
    with recording(FRAMEWORKS, framework.name, language=framework.language, version=version, feature=feature):
        if missing is not None:
            pytest.skip(f"{framework.name}: {missing}")
        yield
