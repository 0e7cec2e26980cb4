"""Random rounds as faults with times: each is undone before the next one."""

from __future__ import annotations

from itertools import groupby, repeat
from types import SimpleNamespace
from typing import Any

from tools.faults.faults import ACTIONS
from tools.faults.rounds import as_script
from tools.faults.schedule import all_kinds, schedule
from tools.faults.script import parse

BROKERS = (1, 2, 3)
PAUSE_S = 2.0


def test_rounds_as_a_script(monkeypatch: Any) -> None:
    rounds = schedule(7, 60, BROKERS, all_kinds(6.0))
    cluster: Any = SimpleNamespace(broker_ids=BROKERS)
    monkeypatch.setattr("tools.faults.roles.Roles.controller", lambda _: 2)
    script = as_script(rounds, ["t-0", "t-1"], ["g"], cluster, repeat(PAUSE_S))
    by_time = [list(faults) for _, faults in groupby(script, key=lambda fault: fault.at_s)]
    assert [faults[0].verb for faults in by_time] == [round_.kind.action for round_ in rounds]
    free_from = 0.0
    for round_, faults in zip(rounds, by_time, strict=True):
        assert faults[0].at_s >= free_from
        has_undo = ACTIONS[round_.kind.action].undo is not None
        assert {fault.lasts_s for fault in faults} == {round_.seconds if has_undo else None}
        assert all(parse(str(fault)).role == fault.role for fault in faults)
        free_from = faults[0].at_s + round_.seconds + PAUSE_S - 0.001
    assert {len(faults) for faults in by_time} == {1, 2, 3}  # "restart two", "restart all"
