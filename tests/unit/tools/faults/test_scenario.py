"""Scenario files: both forms of a fault, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.faults.scenario import parse_scenario, read_scenario
from tools.faults.script import FaultError, parse_all


def test_both_forms_say_the_same() -> None:
    found = parse_scenario(
        """
        faults:
          - restart it at 40s
          - kill leader of t-0 at 20s
          - {do: cut broker 2, from: [peers, zookeeper], one-way: in, reset: true, delay: 5ms, for: 5s, at: 30s}
          - {do: kill leader of t-0, at: 20s}
        """,
        "s.yaml",
    )
    line = "cut broker 2 from peers,zookeeper one-way in delay 5ms reset for 5s at 30s"
    assert found == parse_all(["kill leader of t-0 at 20s", "kill leader of t-0 at 20s", line, "restart it at 40s"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "s.yaml is empty"),
        ("- kill broker 1 at 1s", "s.yaml, line 1: expected `faults:` and a list"),
        ("faults: []", "s.yaml, line 1: a scenario without a fault"),
        ("faults: kill", "s.yaml, line 1: `faults` is a list"),
        ("name: x\nfaults: []", "s.yaml, line 1: unknown key 'name'"),
        ("faults:\n- kill broker 1 at 1s\n- kill broker 2", "s.yaml, line 3: 'kill broker 2' is not"),
        ("faults:\n- drown broker 1 at 1s", "s.yaml, line 2: .* is no action"),
        ("faults:\n- {do: kill broker 1}", "s.yaml, line 2: a fault without `at`"),
        ("faults:\n- {at: 1s}", "s.yaml, line 2: a fault without `do`"),
        (
            "faults:\n- do: kill broker 1\n  at: 1s\n  whom: x",
            "s.yaml, line 4: unknown key 'whom'; the keys are do, from",
        ),
        ("faults:\n- {do: kill broker 1, at: 1s, at: 2s}", "s.yaml, line 2: at twice"),
        ("faults:\n- {do: kill broker 1, at: {}}", "s.yaml, line 2: at: expected a text"),
        ("faults:\n- [kill]", "s.yaml, line 2: a fault is a line of words, or a mapping"),
        ("faults:\n- it at 1s\n", "s.yaml, line 2: 'it' is no action|is no action"),
        ("faults:\n- restart it at 1s\n", "s.yaml: 'restart it at 1s': there is no fault before it"),
        ("faults: [a\nb: }", "s.yaml, line 2, column 2: not YAML"),
        ("faults: \x00", "s.yaml: not YAML"),
    ],
)
def test_errors_name_the_line(text: str, reason: str) -> None:
    with pytest.raises(FaultError, match=reason) as refused:
        parse_scenario(text, "s.yaml")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match=r"none.yaml cannot be read: No such file"):
        read_scenario(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(FaultError, match=r"bytes.yaml is not UTF-8"):
        read_scenario(tmp_path / "bytes.yaml")
