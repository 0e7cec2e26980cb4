"""docs/CLIENTS.md agrees with the list of the clients."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients import page, results
from tests.clients.clients import CLIENTS, FEATURES
from tests.unit.docs.pages import rows, section, text_of

WHOLE = rows(section(text_of(page.PAGE), "Results"))


def test_every_client_has_a_row_and_no_other() -> None:
    assert [row[:2] for row in WHOLE] == [[client.name, client.language] for client in CLIENTS]
    assert {len(row) for row in WHOLE} == {page.BEFORE_CELLS + len(FEATURES)}


def test_what_a_client_lacks_is_what_the_page_says() -> None:
    written = {row[0]: dict(zip(FEATURES, row[page.BEFORE_CELLS :], strict=True)) for row in WHOLE}
    for client in CLIENTS:
        lacked = {feature for feature, word in written[client.name].items() if word == page.NO}
        not_run = {feature for feature, word in written[client.name].items() if word == page.NOT_RUN}
        assert lacked | not_run >= client.lacks >= lacked, client.name
        assert page.FAILED not in written[client.name].values(), client.name


def test_results_of_several_runs_are_put_together(tmp_path: Path) -> None:
    def file(name: str, version: str, **cells: str) -> Path:
        row = {"language": "C", "version": version}
        row |= {"cells": {feature: {"result": result, "reason": ""} for feature, result in cells.items()}}
        path = tmp_path / name
        path.write_text(json.dumps({"clients": {"a": row}, "frameworks": {}}))
        return path

    first = file("first", "1", none="passed", gzip="failed", admin="passed")
    second = file("second", "", none="skipped", gzip="passed", lz4="skipped")
    row = results.merged([first, second, tmp_path / "no such file"])["clients"]["a"]
    assert row["version"] == "1"
    assert {feature: cell["result"] for feature, cell in row["cells"].items()} == {
        "none": "passed",
        "gzip": "passed",
        "admin": "passed",
        "lz4": "skipped",
    }


def test_every_column_is_explained() -> None:
    columns = [
        name for row in rows(section(text_of(page.PAGE), "What each column tests")) for name in row[0].split(", ")
    ]
    assert columns == list(FEATURES)
