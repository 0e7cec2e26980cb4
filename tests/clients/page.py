"""Writes the tables of docs/CLIENTS.md from the results of the last run.

    python -m tests.clients.page [RESULTS ...]

The results are in `.test-logs/clients.json`, and in the other files that are named, from earlier runs or other machines. A cell
without a result is "-".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.clients import results
from tests.clients.clients import CLIENTS, FEATURES, REPOSITORY

PAGE = REPOSITORY / "docs" / "CLIENTS.md"
START, END = "<!-- clients: written by python -m tests.clients.page -->\n", "<!-- clients: end -->"
YES, NO, PART, NOT_RUN, FAILED = "yes", "no", "part", "-", "FAILED"
BEFORE_CELLS = 3
"""Columns of the table before the features: client, language, version."""


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return line(head) + "|---" * len(head) + "|\n" + "".join(map(line, rows))


def without_bars(text: str) -> str:
    """A `|` would end the cell."""
    return text.replace("|", "/")


def word(cell: dict[str, str]) -> str:
    match cell.get("result"):
        case results.PASSED:
            return PART if cell["reason"] else YES
        case results.UNSUPPORTED:
            return NO
        case results.FAILED:
            return FAILED
    return NOT_RUN


def whole_rows(found: dict[str, Any]) -> list[list[str]]:
    """A row for each client: name, language, version, and a word for each feature."""
    rows = []
    for client in CLIENTS:
        row = found.get(client.name, {"version": "", "cells": {}})
        words = [word(row["cells"].get(feature, {})) for feature in FEATURES]
        rows.append([client.name, client.language, without_bars(row["version"]) or NOT_RUN, *words])
    return rows


def notes(found: dict[str, Any]) -> str:
    """What is missing, and why."""
    lines = []
    for client in CLIENTS:
        cells = found.get(client.name, {"cells": {}})["cells"]
        for feature in FEATURES:
            cell = cells.get(feature, {})
            if word(cell) != YES and cell.get("reason"):
                lines.append(f"- {client.name}, {feature}: {cell['reason']}\n")
    return "".join(["\n", *lines]) if lines else ""


def frameworks(found: dict[str, Any]) -> str:
    if not found:
        return ""
    rows = [
        [name, row["version"], feature, word(cell), cell["reason"]]
        for name, row in found.items()
        for feature, cell in row["cells"].items()
    ]
    shown = [[without_bars(cell) for cell in row] for row in rows]
    return "\n## Frameworks\n\n" + table(["framework", "version", "test", "result", "note"], shown)


def replace(path: Path, written: str) -> None:
    """Replaces what is between the two comments."""
    before, _, rest = path.read_text(encoding="utf-8").partition(START)
    path.write_text(before + START + written + rest[rest.index(END) :], encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    files = [Path(argument) for argument in arguments]
    for missing in (file for file in files if not file.exists()):
        print(f"{missing} does not exist", file=sys.stderr)
        return 2
    everything = results.merged([*files, results.FILE])
    found = everything[results.CLIENTS]
    whole = whole_rows(found)
    results_table = table(["client", "language", "version", *FEATURES], whole) + notes(found)
    replace(PAGE, "\n## Results\n\n" + results_table + frameworks(everything[results.FRAMEWORKS]) + "\n")
    print(f"{len(whole)} clients: {PAGE.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
