"""How many connections there may be: limits that may change, and the shares of descriptors on the listeners."""

from __future__ import annotations

from broker.network.acceptor import ConnectionCounts
from broker.process.descriptors import shares_of


class Connection:
    """A broker's, as the counts see it."""

    def __init__(self, counts: ConnectionCounts, last_heard: float) -> None:
        self.last_heard = last_heard
        self.is_open = True
        self._counts = counts
        counts.take_broker(self)  # type: ignore[arg-type]

    def abort(self) -> None:
        self.is_open = False
        self._counts.give_back_broker(self)  # type: ignore[arg-type]


def test_clients_have_no_more_than_their_share() -> None:
    shares = shares_of(256)
    counts = ConnectionCounts(2**31 - 1, 2**31 - 1, shares)
    assert [counts.take(f"{number}") for number in range(shares.clients)] == [""] * shares.clients
    assert "limit of open files" in counts.take("late")
    counts.share(shares_of(1024))
    assert counts.take("late") == ""
    assert counts.clients_max == shares_of(1024).clients
    counts.limit(7, 7)
    assert counts.clients_max == 7
    assert "max.connections=7" in counts.take("later")


def test_a_broker_above_the_limit_replaces_the_one_silent_for_longest() -> None:
    counts = ConnectionCounts(1, 1, shares_of(256))
    share = shares_of(256).brokers
    silent = Connection(counts, last_heard=1.0)
    others = [Connection(counts, last_heard=10.0 + number) for number in range(share - 1)]
    late = Connection(counts, last_heard=100.0)
    assert not silent.is_open
    assert late.is_open
    assert all(other.is_open for other in others)
    late.abort()
    another = Connection(counts, last_heard=101.0)
    assert another.is_open
    assert all(other.is_open for other in others)


def test_changed_limits_apply_to_the_next_connection() -> None:
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
