"""docs/FAILOVER.md is what `ottla timeline` prints of the recorded failover, and what the recorded clients saw (OBS-1, CTL-2)."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.unit.docs.pages import ROOT, blocks, rows, text_of
from tools.cli import main

PAGE = text_of(ROOT / "docs" / "FAILOVER.md")
RECORDED = ROOT / "tests" / "recorded" / "failover"
RULES = {*re.findall(r"^\| ([A-Z]{3}-\d+) \|", text_of(ROOT / "docs" / "RULES.md"), re.MULTILINE)}


@cache
def printed(*options: str) -> str:
    files = sorted(map(str, RECORDED.glob("*.jsonl")))
    done = CliRunner().invoke(main, ["timeline", *files, *options])
    assert done.exit_code == 0, done.output
    return done.output


def story() -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed("--format", "json").splitlines()]


def seen(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_page_has_the_lines_that_the_command_prints() -> None:
    on_page = "".join(blocks(PAGE, "text"))
    assert on_page.splitlines() == [line for line in printed().splitlines() if line]


def test_every_step_of_a_new_controller_is_told_in_order() -> None:
    """CTL-2: raises the epoch, sets watches, reads, informs, starts the state machines, sends leaderships, continues."""
    steps = [line for line in story() if "CTL-2" in line["rules"] and "tep " in line["text"]]
    assert [re.findall(r"[Ss]tep (\d)", line["text"]) for line in steps] == [[str(step)] for step in range(1, 8)]
    verbs = (
        "raises the controller epoch",
        "sets its watches",
        "reads everything",
        "informs",
        "starts the state machines",
        "sends every",
        "continues",
    )
    assert all(verb in line["text"] for verb, line in zip(verbs, steps, strict=True))
    assert len({line["who"] for line in steps}) == 1


def test_every_line_names_rules_that_exist() -> None:
    lines = story()
    assert len(lines) > 40
    assert all(line["rules"] and set(line["rules"]) <= RULES for line in lines)


def test_the_pauses_of_the_clients_are_those_that_were_recorded() -> None:
    killed_ms = next(row["time_ms"] for row in seen(RECORDED / "faults.jsonl") if row["kind"] == "broker_killed")
    found: dict[tuple[str, str], list[int]] = {}
    for row in seen(RECORDED / "clients" / "seen.jsonl"):
        found.setdefault((row["partition"], row["what"]), []).append(row["time_ms"] - killed_ms)
    expected = [
        [*key, f"{before / 1000:+.3f} s", f"{after / 1000:+.3f} s", f"{(after - before) / 1000:.3f} s"]
        for key, (before, after) in sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    assert rows(PAGE) == expected
    last = max(after for _, after in found.values())
    assert f"last client's first success was {last} ms after the kill" in PAGE


def test_the_logs_of_this_machine_have_one_clock() -> None:
    """Measured by the requests between the brokers, as if they had come from several machines."""
    measured = re.findall(r"broker \d ([+-][\d.]+) ms \(±([\d.]+)\)", printed().splitlines()[1])
    assert len(measured) == 2
    assert all(float(offset) == 0 and float(width) <= 2 for offset, width in measured)
