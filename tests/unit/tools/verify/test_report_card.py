"""The report card of recipes: what each row says, the exit code, and the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.tools.judge.tables import log_of
from tests.unit.tools.judge.test_verdict import KILL, verdict_of
from tools.faults.request_hits import request_hits
from tools.judge.verdict import CLEAN, FOUND, INCOMPLETE
from tools.verify.markdown import card_markdown
from tools.verify.report_card import Row, card_json, card_junit, card_lines, exit_code

CLEAN_RUN = verdict_of("acked 0 0 a; consumed 0 0 a", log_of("a"), KILL)
LOSS = verdict_of("acked 0 0 <a>; acked 0 1 b; consumed 0 1 b", log_of("-b"), KILL)
CRASH = replace(CLEAN_RUN, incomplete=["your program ended with exit code 1", "more"])
PASSED = Row("lost-ack", CLEAN_RUN, 3)
KILLED = Row("leader-moved", CLEAN_RUN)
FAILED = Row("lost-commit", LOSS, 2)
CRASHED = Row("rebalance", CRASH, 1)
IDLE = Row("fenced-producer", CLEAN_RUN, 0)
LEFT_OUT = Row("stale-metadata", None, not_tried="no | program kills brokers")
BROKEN = Row("refused", None, problem="no broker answers")
ALL = (PASSED, KILLED, FAILED, CRASHED, IDLE, LEFT_OUT, BROKEN)


@pytest.mark.parametrize(
    ("row", "words", "code"),
    [
        (PASSED, "passed", CLEAN),
        (KILLED, "passed", CLEAN),
        (FAILED, "FAILED: 1 lost", FOUND),
        (CRASHED, "incomplete: your program ended with exit code 1", INCOMPLETE),
        (IDLE, "not tried: the program sent no such request", CLEAN),
        (LEFT_OUT, "not tried: no | program kills brokers", INCOMPLETE),
        (BROKEN, "incomplete: no broker answers", INCOMPLETE),
    ],
)
def test_a_row_says_what_came_of_its_recipe(row: Row, words: str, code: int) -> None:
    """A card on which nothing ran shows nothing: the exit code is not 0."""
    assert (row.words, exit_code([row])) == (words, code)


def test_the_worst_row_decides_and_what_was_not_tried_does_not_count() -> None:
    assert exit_code(ALL) == FOUND
    assert exit_code([PASSED, CRASHED]) == INCOMPLETE
    assert exit_code([PASSED, LEFT_OUT, IDLE]) == CLEAN
    assert exit_code([]) == INCOMPLETE


def test_the_table_of_a_terminal() -> None:
    head, *lines = card_lines(ALL)
    assert head.split() == ["RECIPE", "HITS", "NO", "WRITES", "NO", "READS", "RESULT"]
    assert lines[0] == "lost-ack               3     0.00 s     0.00 s  passed"
    assert lines[1].split()[1] == "-"
    assert lines[5] == "stale-metadata         -          -          -  not tried: no | program kills brokers"
    assert len({line.index(row.words) for line, row in zip(lines, ALL, strict=True)}) == 1


def test_json_has_each_verdict() -> None:
    found = json.loads(card_json(ALL, "my program"))
    assert (found["command"], found["exit_code"]) == ("my program", FOUND)
    rows = {each["recipe"]: each for each in found["recipes"]}
    assert rows["lost-commit"]["verdict"]["findings"][0]["evidence"][0]["id"] == "<a>"
    assert (rows["lost-commit"]["result"], rows["lost-commit"]["reason"]) == ("failed", "1 lost")
    assert (rows["stale-metadata"]["verdict"], rows["stale-metadata"]["result"]) == (None, "not tried")
    assert [each["hits"] for each in found["recipes"]] == [3, None, 2, 1, 0, None, None]


def test_junit_has_a_case_for_each_recipe() -> None:
    suite = ElementTree.fromstring(card_junit(ALL)).find("testsuite")
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["7", "1", "2", "2"]
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {
        "lost-ack": [],
        "leader-moved": [],
        "lost-commit": ["failure"],
        "rebalance": ["error"],
        "fenced-producer": ["skipped"],
        "stale-metadata": ["skipped"],
        "refused": ["error"],
    }
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "1 lost"
    assert "client your program, found 1 lost (acknowledged, but not in the log), evidence t-0@0 id '<a>'" in (
        failure.text or ""
    )


def test_markdown_is_a_table_with_the_findings_below() -> None:
    page = card_markdown(ALL, "python <mine>.py")
    assert page.startswith("## ❌ 2 of 7 recipes passed\n\npython &lt;mine&gt;.py\n\n| recipe | hits |")
    assert "| stale-metadata | - | - | - | not tried: no \\| program kills brokers |" in page
    assert "### lost-commit\n\n#### your program: 1 lost" in page
    assert "- t-0@0 id '&lt;a&gt;'" in page
    assert card_markdown([PASSED], "x").startswith("## ✅ 1 of 1 recipes passed")
    assert card_markdown([PASSED, CRASHED], "x").startswith("## ⚠️ 1 of 2 recipes passed")
    assert card_markdown([LEFT_OUT], "x").startswith("## ⚠️ 0 of 1 recipes passed")


def test_hits_are_counted_since_the_recipe_began(tmp_path: Path) -> None:
    for broker, times in ((1, (999, 1000)), (2, (2000,))):
        (tmp_path / f"broker-{broker}").mkdir()
        rows = [{"time_ms": at, "kind": "request_fault", "rule": "drop fetch once"} for at in times] + [
            {"time_ms": 3000, "kind": "leader"}
        ]
        lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (tmp_path / f"broker-{broker}" / "events.jsonl").write_text(lines)
    assert request_hits(tmp_path, 1000) == {"drop fetch once": 2}
