"""The outage table: its words, its figures, and what it refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools.bench.outage_faults import FAULTS
from tools.bench.outage_load import OutageLoad
from tools.bench.outages import Row, main, table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "kill,earthquake"], "earthquake: known are kill, "),
        (["--faults", ","], "nothing: known are kill, "),
        (["--samples", "0"], "x>=1"),
        (["--seed", "soon"], "not a valid integer"),
    ],
)
def test_bad_options_are_refused_with_a_reason(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_table_has_ours_beside_the_goal_and_kafka() -> None:
    rows = [
        Row(FAULTS["kill"], outages=[0.5, 0.1, 0.2], healed=[1.0, 2.0, 3.0], doubled=2),
        Row(FAULTS["session"], outages=[0.25], healed=[0.0], lost=1, failed=1),
    ]
    head, kill, session = table(rows).splitlines()
    assert head.split() == ["FAULT", "OUTAGE", "GOAL", "KAFKA", "HEALED", "GOAL", "KAFKA", "LOST", "DOUBLED"]
    assert kill.split("  ")[0] == "SIGKILL of a leader"
    assert "0.20 / 0.50" in kill
    assert "2.00 / 3.00" in kill
    assert kill.split()[-2:] == ["0", "2"]
    assert session.split()[-2:] == ["2", "0"]


def test_the_outage_is_the_longest_of_any_partition_since_the_fault() -> None:
    load = OutageLoad("127.0.0.1:1", "t", 2, {})
    load._times = {0: [1.0, 9.0, 10.0, 10.5], 1: [9.9, 12.0, 12.1]}
    assert load.outage_s(10.0) == pytest.approx(2.1)
    assert load.outage_s(1.0) == pytest.approx(8.0)
    assert load.outage_s(99.0) == 0.0
