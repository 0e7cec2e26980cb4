"""`max.connections` and `max.connections.per.ip`, which may change while the broker runs."""

from __future__ import annotations

from broker.network.acceptor import ConnectionCounts


def test_limits_that_change_count_for_the_next_connection() -> None:
    counts = ConnectionCounts(2, 2)
    assert counts.take("a") == counts.take("a") == ""
    assert "max.connections=2" in counts.take("b")
    counts.limit(10, 1)
    assert counts.take("b") == ""
    assert "max.connections.per.ip=1" in counts.take("b")
    assert "max.connections.per.ip=1" in counts.take("a"), "who is connected stays, but nobody more comes"
    counts.give_back("a")
    counts.limit(1, 5)
    assert "max.connections=1" in counts.take("c")
