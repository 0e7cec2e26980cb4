"""Faults that follow each other so that a known bug of other systems would show itself: orders of events that chance seldom makes.

A fault is written as in a plan, with a role in the place of a broker's number, and times from the begin of the sequence on. LEADER,
FOLLOWER and OTHER are the replicas of one partition: of the load, or that of a coordinator. The ids are those of docs/RULES.md.
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
    # What a leader has told, no follower has (BUG-25).
    ("cut from other brokers LEADER at 0 for 2.5", "kill LEADER at 1.5 for 2"),
    ("slow links LEADER at 0 for 5", "kill LEADER at 2.5 for 2"),
    # A new coordinator takes long to load (BUG-25).
    ("slow disk FOLLOWER at 0 for 4", "slow disk OTHER at 0 for 4", "kill LEADER at 0.1 for 2"),
    # A leader stands still until it is replaced, and goes on (FLT-6).
    ("pause LEADER at 0 for 7",),
    # A controller is replaced while it stands still with work to do (BUG-8).
    ("pause CONTROLLER at 0 for 7", "kill LEADER at 0.02 for 3"),
    # It is replaced while what it has sent is still on its way (BUG-8).
    (
        "kill LEADER at 0 for 1",
        "cut from the controller OTHER at 0.6 for 4",
        "expire the session CONTROLLER at 1.8 for 0.1",
    ),
    # It loses its session with work to do (BUG-7).
    ("cut from ZooKeeper CONTROLLER at 0 for 6", "restart LEADER at 1 for 1"),
    # It decides about a state that the leader has just changed (BUG-6).
    (
        "pause FOLLOWER at 0 for 3.8",
        "cut from ZooKeeper CONTROLLER at 1.5 for 3.2",
        "restart LEADER at 3.5 for 2",
    ),
    # A leader is away and back while there is no controller (BUG-16).
    ("kill CONTROLLER at 0 for 0.3", "kill LEADER at 0.1 for 0.3"),
    # All lose power: only what was synced is there (INV-1).
    ("lose power 1 at 0 for 1", "lose power 2 at 0.1 for 1", "lose power 3 at 0.2 for 1"),
    # A broker that was stopped well dies in its next life, in the middle of writing, and then loses power (BUG-18).
    (
        "restart FOLLOWER at 0 for 0.3",
        "slow disk FOLLOWER at 2 for 3",
        "kill FOLLOWER at 3 for 0.2",
        "lose power FOLLOWER at 3.6 for 0.5",
    ),
    # A replica begins with a new disk, and the others die one after the other (FLT-33). If all died at once, with the controller, nobody
    # would know who has the records: a person must decide.
    ("empty the disk FOLLOWER at 0 for 0.3", "kill LEADER at 3 for 3", "kill OTHER at 7 for 3"),
    # Logs are written slowly, and are behind each other when the leader changes (BUG-12).
    (
        "slow disk FOLLOWER at 0 for 6",
        "slow disk OTHER at 0 for 4",
        "expire the session LEADER at 1 for 0.1",
        "expire the session LEADER at 2 for 0.1",
    ),
    # What was given up comes late (BUG-12).
    ("slow links LEADER at 0 for 6",),
    # Answers come after the leader has changed (BUG-12).
    ("cut one way LEADER at 0 for 2", "move the replica LEADER at 0.4 for 3"),
    # The leader changes between members of the ISR that lag, while a third one catches up (BUG-9).
    (
        "cut from other brokers OTHER at 0 for 4.5",
        "slow links LEADER at 4 for 5",
        "move the replica LEADER at 5 for 2",
    ),
    # The leader changes there and back, and a follower that was ahead hears of it late (BUG-3, BUG-13).
    (
        "pause FOLLOWER at 0 for 1.5",
        "cut from the controller OTHER at 0.3 for 7",
        "expire the session LEADER at 1 for 0.1",
        "expire the session LEADER at 2.5 for 0.1",
    ),
    # A follower that is behind leads, and then the first leader again, before its followers have told it where they are (INV-12).
    (
        "pause OTHER at 0 for 2.5",
        "expire the session LEADER at 1 for 0.1",
        "expire the session FOLLOWER at 1 for 0.1",
        "expire the session LEADER at 3.2 for 0.1",
        "pause FOLLOWER at 3.25 for 1.5",
    ),
    # The leader dies, and the next one as well, before the first is back (BUG-1, BUG-14).
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
    ("cut from the controller OTHER at 0 for 9", "kill LEADER at 0.3 for 20"),
    # They come late, also by a connection that was given up, to a replica that has gone and come (BUG-20).
    ("slow links FOLLOWER at 0 for 4", "move the replica FOLLOWER at 0.5 for 4"),
    # A new leader hears between two batches of a producer that it leads (INV-20).
    ("slow links FOLLOWER at 0 for 6", "kill LEADER at 2 for 3"),
    # A replica comes to a broker that can open no file (BUG-21).
    ("move the replica FOLLOWER at 0 for 2", "scarce descriptors FOLLOWER at 1.5 for 3"),
    # After a start, a file that is not open yet cannot be opened.
    ("kill FOLLOWER at 0 for 1", "scarce descriptors FOLLOWER at 2 for 5"),
    # A leader does not hear ZooKeeper (BUG-7).
    ("cut from ZooKeeper LEADER at 0 for 7",),
)
