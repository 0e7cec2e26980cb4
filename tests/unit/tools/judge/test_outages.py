"""Windows without an answer, and what they cost each fault."""

from __future__ import annotations

import pytest

from tests.unit.tools.judge.tables import log_of, reports_of
from tools.judge.outages import Outage, Wait, cost_of, outages_of, windows
from tools.judge.tables import Tables


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([Wait(1, 2)], [(1, 2, False)], id="one"),
        pytest.param([Wait(1, 2), Wait(5, 6)], [(1, 2, False), (5, 6, False)], id="nothing waits in between"),
        pytest.param([Wait(1, 2), Wait(1, 6)], [(1, 2, False), (2, 6, False)], id="since the answer before"),
        pytest.param([Wait(1, 3), Wait(2, 3)], [(1, 3, False), (3, 3, False)], id="both at once"),
        pytest.param([Wait(1, 4, False)], [(1, 4, False)], id="until the last one fails"),
        pytest.param([Wait(1, 4, False), Wait(2, 6)], [(1, 6, False)], id="a failure is no answer"),
        pytest.param([Wait(1, 2), Wait(3, None)], [(1, 2, False), (3, 10, True)], id="open"),
        pytest.param([Wait(1, None), Wait(1, 12)], [(1, 12, False)], id="answered after the end"),
        pytest.param([Wait(1, None), Wait(2, 3)], [(1, 3, False)], id="overtaken"),
        pytest.param([Wait(3, 2)], [], id="served before it was known to wait"),
    ],
)
def test_windows(waits: list[Wait], found: list[tuple[float, float, bool]]) -> None:
    assert windows(waits, 10) == found


def test_writes_wait_from_produced_to_acked_and_reads_from_acked_to_consumed() -> None:
    tables = Tables.of(reports_of("produced a; acked 0 0 a; produced b; consumed 0 0 a; produced c; acked 0 1 b"))
    assert outages_of(tables, log_of("ab"), 9) == [
        Outage("t", 0, "", 0, 1, False),
        Outage("t", 0, "g", 1, 3, False),
        Outage("t", 0, "", 2, 5, False),
        Outage("t", -1, "", 5, 9, True),  # of c: nobody knows its partition
        Outage("t", 0, "g", 5, 9, True),
    ]


def test_without_produced_lines_a_partition_waits_from_one_answer_to_the_next() -> None:
    tables = Tables.of(reports_of("acked 0 0 a; acked 1 0 b; acked 0 1 c"))
    assert outages_of(tables, log_of("ac b"), 9) == [Outage("t", 0, "", 0, 2, False)]


def test_records_without_an_answer_and_without_a_partition_wait_for_any_answer_in_their_topic() -> None:
    tables = Tables.of(reports_of("produced a; acked 1 0 a; produced b; produced c"))
    assert outages_of(tables, log_of("- a"), 9)[-1] == Outage("t", -1, "", 2, 9, True)
    tables = Tables.of(reports_of("produced a; produced b; acked 1 0 b"))
    assert not any(outage.is_open for outage in outages_of(tables, log_of("- b"), 9))


def test_each_outage_counts_for_one_fault() -> None:
    outages = [
        Outage("t", 0, "", 9.9, 12, False),  # in flight at the first fault
        Outage("t", 1, "g", 12.3, 13, False),  # follows at once
        Outage("t", 1, "", 15, 16, False),  # of neither: too late for the first fault
        Outage("t", 0, "", 20.1, 25, True),
    ]
    first, second = cost_of(outages, 10, 20), cost_of(outages, 20, 25)
    assert (first.writes_s, first.reads_s, first.recovered_s) == (pytest.approx(2.1), pytest.approx(0.7), 3)
    assert [outage.name for outage in first.outages] == ["t-0", "t-1 for g"]
    assert (second.writes_s, second.reads_s, second.recovered_s) == (pytest.approx(4.9), 0, None)
    assert cost_of(outages, 17, 20).recovered_s == 0


def test_an_outage_that_begins_while_a_slow_fault_is_carried_out_is_its_own() -> None:
    outages = [Outage("t", 1, "", 15, 16, False)]
    assert cost_of(outages, 14, 20).writes_s == 0
    slow = cost_of(outages, 14, 20, took_s=0.8)
    assert (slow.writes_s, slow.recovered_s) == (1, 2)
    assert cost_of([], 14, 20, took_s=0.8).recovered_s == 0
