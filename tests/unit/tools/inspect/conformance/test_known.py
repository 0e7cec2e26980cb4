"""The list of known differences: what fits it, and that docs/CONFORMANCE.md is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from tools.inspect.conformance.conformance_command import KNOWN_DIFFERENCES, OF_LEVEL_4, known_at, read_known
from tools.inspect.conformance.known import BadKnownDifferences, parse_known, shown_versions
from tools.inspect.conformance.page import PAGE, kafkas_versions, served_at, tables, version_rows, with_tables
from tools.inspect.conformance.report import Found, difference_lines, sort_out

ENTRY = {"apis": "Fetch", "differs": "d", "why": "w"}


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, True),
        ({"apis": ["Produce", "Fetch"]}, True),
        ({"apis": "*"}, True),
        ({"apis": "Produce"}, False),
        ({"cases": "max_bytes = *"}, True),
        ({"cases": ["other", "*= -1"]}, True),
        ({"cases": "max_bytes"}, False),
        ({"paths": "responses[{run}-topic].*.error_code"}, True),
        ({"paths": "responses[*"}, True),
        ({"paths": "error_code"}, False),
        ({"versions": "4-12"}, True),
        ({"versions": 7}, True),
        ({"versions": "8-9"}, False),
    ],
)
def test_an_entry_fits(more: dict[str, Any], fits: bool) -> None:
    (entry,) = parse_known([{**ENTRY, **more}])
    path = "responses[{run}-topic].partitions[0].error_code"
    assert entry.fits("Fetch", 7, "max_bytes = -1", path) is fits


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        ["text"],
        [{"apis": "Fetch", "why": "w"}],
        [{**ENTRY, "other": 1}],
        [{**ENTRY, "cases": []}],
        [{**ENTRY, "paths": [1]}],
        [{**ENTRY, "versions": "new"}],
    ],
)
def test_what_is_no_list_of_known_differences_is_refused(rows: Any) -> None:
    with pytest.raises(BadKnownDifferences):
        parse_known(rows)


def test_known_differences_and_entries_that_did_not_occur_are_told_apart() -> None:
    entries = parse_known([ENTRY, {**ENTRY, "apis": "Produce"}])
    found = [
        Found("Fetch", 4, "c", "p", 1, 2),
        Found("Metadata", 1, "c", "p", 1, 2),
        Found("Metadata", 2, "c", "p", 1, 2),
    ]
    result = sort_out(found, entries)
    assert (result.known, result.other, result.unused) == (found[:1], found[1:], [entries[1]])
    assert list(difference_lines(result.other)) == [
        "",
        "Metadata",
        "  v1-2  p: reference 1, subject 2",
        "      c",
    ]


@pytest.mark.parametrize(("versions", "shown"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([2, 1, 1], "1-2")])
def test_versions_are_shown_as_ranges(versions: list[int], shown: str) -> None:
    assert shown_versions(versions) == shown


@pytest.mark.parametrize("level", ApiLevel)
def test_each_version_that_differs_has_its_reason(level: ApiLevel) -> None:
    rows = version_rows(kafkas_versions(level), served_at(level), known_at(level))
    assert [row for row in rows if not row[4]] == []


def test_the_same_apis_up_to_kafkas_newest_versions() -> None:
    """FMT-1: less only what is not there."""
    served, kafkas = served_at(ApiLevel.KAFKA_3_9), kafkas_versions()
    assert served.keys() <= kafkas.keys()
    newest = {messages.api_name(key): (versions[1], kafkas[key][1]) for key, versions in served.items()}
    assert {name: pair for name, pair in newest.items() if pair[0] != pair[1]} == {}


def test_the_page_has_the_tables_of_the_list() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page, tables()), "run `python -m tools.inspect.conformance.page`"


@pytest.mark.parametrize("file", [KNOWN_DIFFERENCES, OF_LEVEL_4])
def test_the_list_is_read_as_it_is_written(file: Path) -> None:
    assert len(read_known(file)) == len(yaml.safe_load(file.read_text()))
