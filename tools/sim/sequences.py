"""Faults that follow each other so that a known bug of other systems would show itself: orders of events that chance seldom makes.

A fault is written as in a plan, with a role in the place of a broker's number, and times from the begin of the sequence on.
The ids are those of docs/RULES.md.
"""

from __future__ import annotations

from collections.abc import Sequence

SEQUENCES: Sequence[Sequence[str]] = (
    # The ISR shrinks to the leader, which dies: nobody may lead (INV-18).
    ("cut from other brokers LEADER at 0 for 6", "kill LEADER at 4.5 for 3"),
    # The ISR shrinks, and the answer to that write is lost (BUG-5).
    ("lose an answer of ZooKeeper LEADER at 0 for 8", "cut from other brokers FOLLOWER at 0.1 for 5"),
    # A batch is sent again while a follower lags (BUG-11).
    (
        "pause FOLLOWER at 0 for 2.5",
        "reset connections LEADER at 0.7 for 0.1",
        "reset connections LEADER at 1.4 for 0.1",
    ),
    # What a leader has told, a follower has not (BUG-25).
    ("pause FOLLOWER at 0 for 2.5", "kill LEADER at 1.2 for 3"),
    # A controller is replaced while it stands still with work to do (BUG-8).
    ("pause CONTROLLER at 0 for 7", "kill LEADER at 0.02 for 3"),
    # It loses its session just when it has work to do (BUG-7).
    ("kill LEADER at 0 for 3", "expire the session CONTROLLER at 0.15 for 0.1"),
    # A leader is away and back while there is no controller (BUG-16).
    ("kill CONTROLLER at 0 for 6", "lose power LEADER at 0.05 for 0.4"),
    # All lose power: only what was synced is there (INV-1).
    ("lose power 1 at 0 for 1", "lose power 2 at 0.1 for 1", "lose power 3 at 0.2 for 1"),
    # Logs are written slowly, and are behind each other when the leader changes (BUG-9, BUG-12).
    (
        "slow disk FOLLOWER at 0 for 6",
        "slow disk OTHER at 0 for 4",
        "expire the session LEADER at 1 for 0.1",
        "expire the session LEADER at 2 for 0.1",
    ),
    # The leader changes twice, and a follower hears of it late (BUG-3).
    (
        "slow disk OTHER at 0 for 3",
        "cut from the controller FOLLOWER at 0.5 for 7",
        "expire the session LEADER at 1 for 0.1",
    ),
    # The leader dies, and the next one as well, before the first is back (BUG-14).
    ("kill LEADER at 0 for 4", "expire the session LEADER at 1.5 for 0.1", "kill LEADER at 2.5 for 2"),
    # A broker is back before its session ends (BUG-17).
    ("kill LEADER at 0 for 0.3", "kill FOLLOWER at 1.5 for 0.3"),
    # A follower dies between its last fetch and the write that takes it into the ISR (BUG-23).
    (
        "cut from other brokers FOLLOWER at 0 for 4",
        "cut from ZooKeeper LEADER at 3.8 for 2.5",
        "kill FOLLOWER at 4.8 for 3",
    ),
    # Control requests do not come through (BUG-4).
    ("cut from the controller FOLLOWER at 0 for 9", "restart LEADER at 0.3 for 2"),
    ("cut from the controller OTHER at 0 for 9", "kill LEADER at 0.3 for 3"),
    # A leader does not hear ZooKeeper (BUG-7).
    ("cut from ZooKeeper LEADER at 0 for 7",),
)
