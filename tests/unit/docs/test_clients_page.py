"""docs/CLIENTS.md agrees with the list of the clients."""

from __future__ import annotations

import json
import re
from pathlib import Path

from protocol.kafka.api_keys import ADVERTISED, ApiKey, ApiLevel
from tests.clients import page, results
from tests.clients.clients import CLIENTS, FEATURES
from tests.clients.test_report_cards import WITH_A_CARD
from tests.unit.docs.pages import rows, section, text_of
from tools.verify.recipes import RECIPES

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


def test_every_client_has_a_report_card_and_what_fails_in_it_is_known() -> None:
    cards = rows(section(text_of(page.PAGE), "Report cards"))
    assert [row[0] for row in cards] == [client.name for client in WITH_A_CARD]
    for client, row in zip(WITH_A_CARD, cards, strict=True):
        assert len(row) == 2 + len(RECIPES)
        failed = {name for name, word in zip(RECIPES, row[2:], strict=True) if word == page.FAILED}
        assert failed <= set(client.fails), client.name


def test_the_kips_of_each_level_are_those_that_brokers_advertise() -> None:
    """A row names an API and its first version with the KIP; v0 if it names none."""
    levels = (ApiLevel.KAFKA_3_9, ApiLevel.KAFKA_4)
    for kip, what, *said in rows(section(text_of(page.PAGE), "What of Kafka 4")):
        name, _, version = what.rpartition(": ")[2].partition(" v")
        key = getattr(ApiKey, re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(), None)
        for level, word in zip(levels, said, strict=False):
            served = None if key is None else ADVERTISED[level].get(key)
            is_served = served is not None and served.max >= int(version or 0) and (key, level) not in REFUSED
            assert word == (page.YES if is_served else page.NO), (kip, what, level)


REFUSED = {(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiLevel.KAFKA_3_9)}
"""Advertised, and refused as in Kafka 3.9's ZooKeeper mode."""
