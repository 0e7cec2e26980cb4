"""`.test-logs/clients.json`: what came of each cell of the matrix, and of the frameworks. A run updates the cells that it ran."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clients import REPOSITORY, Client

FILE = REPOSITORY / ".test-logs" / "clients.json"
CLIENTS, FRAMEWORKS = "clients", "frameworks"
PASSED, UNSUPPORTED, SKIPPED, FAILED = "passed", "unsupported", "skipped", "failed"

_lock = threading.Lock()


def load(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """{"clients"|"frameworks": {name: {"language", "version", "cells": {feature: {"result", "reason"}}}}}"""
    if not file.exists():
        return {CLIENTS: {}, FRAMEWORKS: {}}
    loaded: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def merged(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The results of several runs. Of a cell that several have, the last one counts, unless it is SKIPPED."""
    everything: dict[str, dict[str, Any]] = {CLIENTS: {}, FRAMEWORKS: {}}
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
