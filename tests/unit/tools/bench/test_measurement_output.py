"""What a load prints: that it is a closed loop, and why it failed, no more than is known."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from tools.bench.closed_loop.generator import reason
from tools.bench.closed_loop.measurement import measurement
from tools.bench.closed_loop.measurement_output import as_json, as_lines
from tools.bench.closed_loop.request_plan import Plan, PlannedConnection


def test_a_measurement_says_that_its_load_waits_for_the_cluster() -> None:
    """One of a thousand requests waited five seconds; thousands that a client of an open loop would have sent are not in the numbers."""
    measured = measurement(1000, 1000, 100_000, 6.0, [0.001] * 999 + [5.0], 1.0)
    (said,) = [line for line in as_lines(measured) if "closed loop" in line]
    assert "`ottla replay run`" in said
    assert as_json(measured)["loop"] == "closed"


@pytest.mark.parametrize("connection", [0, 1])
def test_a_refusal_as_not_the_leader_names_both_causes(connection: int) -> None:
    """A broker that stood still refuses with the same error as one that another leader has replaced."""
    plan = Plan(0, 1, [], [PlannedConnection("produce", ("10.0.0.1", port)) for port in (9092, 9093)])
    said = reason(plan, "code", connection, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert said.startswith(f"10.0.0.1:{9092 + connection} answers NOT_LEADER_OR_FOLLOWER: ")
    assert "another broker was elected" in said
    assert "stood still" in said
