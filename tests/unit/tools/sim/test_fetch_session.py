"""A simulated reader's fetch session names only what has changed."""

from __future__ import annotations

from protocol.types import TopicPartition
from tools.sim.clients.fetch_session import FetchSession

A, B = TopicPartition("topic", 0), TopicPartition("topic", 1)


def test_requests_name_what_has_changed() -> None:
    session = FetchSession(12)
    assert session.changes({A: (0, 100), B: (0, 100)}) == ([A, B], [])
    session.answered(7)
    assert (session.id, session.epoch) == (7, 1)
    assert session.changes({A: (5, 100), B: (0, 100)}) == ([A], [])
    session.answered(7)
    assert session.changes({A: (5, 100)}) == ([], [B])
    assert session.epoch == 2


def test_a_broker_without_room_opens_no_session() -> None:
    session = FetchSession(12)
    session.changes({A: (0, 100)})
    session.answered(0)
    assert (session.id, session.epoch) == (0, 0)
    assert session.changes({A: (0, 100)}) == ([A], [])
