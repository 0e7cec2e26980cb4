"""Writes the tables of docs/CLIENTS.md from the results of the last run.

    python -m tests.clients.page [RESULTS ...]

The results are in `.test-logs/clients.json`, and in the other files that are named, from earlier runs or other machines. A cell
without a result is "-".
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.clients import results
from tests.clients.clients import CLIENTS, FEATURES, REPOSITORY
from tools.verify.recipes import RECIPES

PAGE = REPOSITORY / "docs" / "CLIENTS.md"
MATRIX, CARDS = "clients", "report cards"
"""The written parts of the page. A part without results stays as it is."""
YES, NO, PART, NOT_RUN, FAILED = "yes", "no", "part", "-", "FAILED"
WIDTH = 140
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


def cards(found: dict[str, Any]) -> str:
    """A row for each client: what each failure cost it. Below it, why some failed."""
    rows, whys = [], []
    for client in CLIENTS:
        if client.name in found:
            row = found[client.name]
            cells = {name: row["cells"].get(name, {}) for name in RECIPES}
            rows.append([client.name, without_bars(row["version"]), *map(card_word, cells.values())])
            bad = (results.FAILED, results.AGAIN)
            for why in {cell["reason"]: None for cell in cells.values() if cell.get("result") in bad}:
                names = [name for name, cell in cells.items() if cell.get("reason") == why]
                line = f"- {client.name}, {', '.join(names)}: {why}"
                whys.append(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) + "\n")
    return table(["client", "version", *RECIPES], rows) + "".join(["\n", *whys] if whys else [])


def card_word(cell: dict[str, str]) -> str:
    match cell.get("result"):
        case results.PASSED:
            return cell["reason"]
        case results.FAILED:
            return FAILED
        case results.AGAIN:
            return results.AGAIN
    return NOT_RUN


def replace(path: Path, part: str, written: str) -> None:
    """Replaces what is between the two comments of a part."""
    start, end = f"<!-- {part}: written by python -m tests.clients.page -->\n", f"<!-- {part}: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    path.write_text(f"{before}{start}\n{written}\n{rest[rest.index(end) :]}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    files = [Path(argument) for argument in arguments]
    for missing in (file for file in files if not file.exists()):
        print(f"{missing} does not exist", file=sys.stderr)
        return 2
    everything = results.merged([*files, results.FILE])
    found = everything[results.CLIENTS]
    if found:
        results_table = table(["client", "language", "version", *FEATURES], whole_rows(found)) + notes(found)
        replace(PAGE, MATRIX, "## Results\n\n" + results_table + frameworks(everything[results.FRAMEWORKS]))
    if everything[results.CARDS]:
        replace(PAGE, CARDS, cards(everything[results.CARDS]))
    print(f"{len(found)} clients, {len(everything[results.CARDS])} report cards: {PAGE.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
