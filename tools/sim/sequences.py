"""Faults that follow each other so that a known bug of other systems would show itself: orders of events that chance seldom makes.

A fault is written as in a plan, with a role in the place of a broker's number, and times from the begin of the sequence on. LEADER,
FOLLOWER and OTHER are the replicas of one partition: of the load, or that of a coordinator. OUTSIDER has no replica of it. The ids are
those of docs/RULES.md.

An order may need something in the cluster, such as two replicas. In a seed that has few sequences, over and over, the plan gets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Order:
    """The faults of a sequence, in their order.

    `needs`: keys of a plan and their values; of numbers of clients, at least so many. `about`: whose partition it is about, if not about
    that of the load or any other: "group" or "transaction" for their coordinator's. `is_rare`: what it is for seldom shows itself, even
    where it happens over and over; so some seeds have nothing else.
    """

    def __init__(self, *faults: str, about: str = "", is_rare: bool = False, **needs: Any) -> None:
        self.faults: Sequence[str] = faults
        self.about = about
        self.is_rare = is_rare
        self.needs: Mapping[str, Any] = needs


NO_BALANCE: Mapping[str, str] = {"auto.leader.rebalance.enable": "false"}
"""Leaders are elected when the sequence says so."""
SYNCED: Mapping[str, str] = {"log.flush.interval.messages": "1"}
"""Without it, the last replica of an ISR may lose acknowledged records with its power, as in Kafka."""
BATCH_BY_BATCH: Mapping[str, str] = {"replica.fetch.max.bytes": "1"}

SEQUENCES: Sequence[Order] = (
    # The ISR shrinks to the leader, which dies: nobody may lead (INV-18).
    Order("cut from other brokers LEADER at 0 for 6", "kill LEADER at 4.5 for 3"),
    # The ISR shrinks, and the answer to that write is lost (BUG-5).
    Order("lose an answer of ZooKeeper LEADER at 0 for 8", "cut from other brokers FOLLOWER at 0.1 for 5"),
    # A batch is sent again while a follower lags (BUG-11).
    Order(
        "pause FOLLOWER at 0 for 2.5",
        "reset connections LEADER at 0.7 for 0.1",
        "reset connections LEADER at 1.4 for 0.1",
    ),
    # What a leader has told, no follower has (BUG-25).
    Order("cut from other brokers LEADER at 0 for 2.5", "kill LEADER at 1.5 for 2"),
    Order("slow links LEADER at 0 for 5", "kill LEADER at 2.5 for 2"),
    # A new coordinator takes long to load (BUG-25).
    Order(
        "slow disk FOLLOWER at 0 for 4",
        "slow disk OTHER at 0 for 4",
        "kill LEADER at 0.1 for 2",
        about="group",
        members=2,
    ),
    Order("slow disk FOLLOWER at 0 for 4", "slow disk OTHER at 0 for 4", "kill LEADER at 0.1 for 2"),
    # A leader stands still until it is replaced, and goes on (FLT-6).
    Order("pause LEADER at 0 for 7"),
    # A controller is replaced while it stands still with work to do (BUG-8).
    Order("pause CONTROLLER at 0 for 7", "kill LEADER at 0.02 for 3"),
    # It is replaced while what it has sent is still on its way (BUG-8).
    Order(
        "kill LEADER at 0 for 1",
        "cut from the controller OTHER at 0.6 for 4",
        "expire the session CONTROLLER at 1.8 for 0.1",
    ),
    # It loses its session with work to do (BUG-7).
    Order("cut from ZooKeeper CONTROLLER at 0 for 6", "restart LEADER at 1 for 1", replicas=2),
    # It decides about a state that the leader has just changed (BUG-6).
    Order(
        "pause FOLLOWER at 0 for 3.8",
        "cut from ZooKeeper CONTROLLER at 1.5 for 3.2",
        "restart LEADER at 3.5 for 2",
    ),
    # A leader is away and back while there is no controller (BUG-16).
    Order("kill CONTROLLER at 0 for 0.3", "kill LEADER at 0.1 for 0.3"),
    # All lose power: only what was synced is there (INV-1).
    Order("lose power 1 at 0 for 1", "lose power 2 at 0.1 for 1", "lose power 3 at 0.2 for 1"),
    # The same, while replicas move from one log directory to the other (LOG-6).
    Order(
        "lose power 1 at 0 for 1",
        "lose power 2 at 0.1 for 1",
        "lose power 3 at 0.2 for 1",
        log_dirs=2,
        has_admin=True,
        settings=SYNCED,
    ),
    # A disk fails, and what it has not written stays in the page cache until power is lost (LOG-2).
    Order(
        "slow disk FOLLOWER at 0 for 2",
        "failing disk FOLLOWER at 0.5 for 1",
        "lose power FOLLOWER at 6 for 1",
        settings=SYNCED,
    ),
    # A transaction ends while one of its partitions can be told nothing (TXN-3).
    Order("cut from other brokers LEADER at 0 for 2.5", transactional=2, pauses=0.25),
    # A broker that was stopped well dies in its next life, in the middle of writing, and loses power when it has just begun again (BUG-18).
    Order(
        "restart FOLLOWER at 0 for 0.3",
        "slow disk FOLLOWER at 1 for 3",
        "kill FOLLOWER at 2 for 0.1",
        "lose power FOLLOWER at 2.3 for 0.5",
        pauses=0.5,
        settings=SYNCED,
    ),
    # A replica begins with a new disk, and the others die one after the other (FLT-33). If all died at once, with the controller, nobody
    # would know who has the records: a person must decide.
    Order("empty the disk FOLLOWER at 0 for 0.3", "kill LEADER at 3 for 3", "kill OTHER at 7 for 3"),
    # One begins with a new disk, and nobody hears that it was away; then the only other one dies (FLT-33).
    Order(
        "pause CONTROLLER at 0 for 2.5",
        "empty the disk FOLLOWER at 0.1 for 0.3",
        "kill LEADER at 0.8 for 4",
        replicas=2,
    ),
    # Logs are written slowly, and are behind each other when the leader changes (BUG-12).
    Order(
        "slow disk FOLLOWER at 0 for 6",
        "slow disk OTHER at 0 for 4",
        "expire the session LEADER at 1 for 0.1",
        "expire the session LEADER at 2 for 0.1",
    ),
    # What was given up comes late (BUG-12).
    Order("slow links LEADER at 0 for 6"),
    # Answers come after the leader has changed (BUG-12).
    Order("cut one way LEADER at 0 for 2", "move the replica LEADER at 0.4 for 3"),
    # The leader changes between two live members of the ISR, and the first one hears late of it, while a third one is back and catches up
    # (BUG-9): the new leader's high watermark is behind.
    Order(
        "elect FOLLOWER at 0 for 2.1",
        "kill OTHER at 0.8 for 1.7",
        "cut from the controller LEADER at 1.9 for 3",
        "slow links to brokers OTHER at 2.2 for 3",
        replicas=3,
        settings={**NO_BALANCE, **BATCH_BY_BATCH},
    ),
    # The leader changes between members of the ISR that lag, while a third one catches up (BUG-9).
    Order(
        "cut from other brokers OTHER at 0 for 4.5",
        "slow links LEADER at 4 for 5",
        "move the replica LEADER at 5 for 2",
    ),
    # The leader changes there and back, and a follower that was ahead hears of it late (BUG-3, BUG-13).
    Order(
        "pause FOLLOWER at 0 for 1.5",
        "cut from the controller OTHER at 0.3 for 7",
        "expire the session LEADER at 1 for 0.1",
        "expire the session LEADER at 2.5 for 0.1",
    ),
    # A follower that is behind leads for a moment: its answers about where epochs end come when the first leader leads again (BUG-12).
    Order(
        "elect FOLLOWER at 0 for 1.5",
        "cut from the leader FOLLOWER at 0.7 for 0.82",
        "slow links to brokers FOLLOWER at 0.7 for 4",
        "elect FOLLOWER at 1.55 for 0.5",
        replicas=3,
        settings=NO_BALANCE,
    ),
    # Logs are cut while their copies in the other log directory are synced (LOG-6).
    Order(
        "elect FOLLOWER at 0 for 1.5",
        "slow disk LEADER at 0.2 for 3",
        "slow disk OTHER at 0.2 for 3",
        "cut from the leader FOLLOWER at 0.4 for 1.2",
        is_rare=True,
        replicas=3,
        log_dirs=2,
        has_admin=True,
        producers=2,
        pauses=0.25,
        settings={**NO_BALANCE, **SYNCED},
    ),
    # A follower that is behind leads, and then the first leader again, which has cut its log. The other follower hears late of it (BUG-3,
    # INV-12).
    Order(
        "elect FOLLOWER at 0 for 1.5",
        "cut from the leader FOLLOWER at 0.5 for 1.5",
        "cut from the controller OTHER at 1.2 for 6",
        "elect FOLLOWER at 2.5 for 0.7",
        replicas=3,
        producers=2,
        pauses=0.25,
        settings=NO_BALANCE,
    ),
    # A follower that is behind leads, and then the first leader again, before its followers have told it where they are (INV-12).
    Order(
        "pause OTHER at 0 for 2.5",
        "expire the session LEADER at 1 for 0.1",
        "expire the session FOLLOWER at 1 for 0.1",
        "expire the session LEADER at 3.2 for 0.1",
        "pause FOLLOWER at 3.25 for 1.5",
    ),
    # The leader dies, and the next one as well, before the first is back (BUG-1, BUG-14).
    Order("kill LEADER at 0 for 4", "expire the session LEADER at 1.5 for 0.1", "kill LEADER at 2.5 for 2"),
    # A broker is back before its session ends (BUG-17).
    Order("kill LEADER at 0 for 0.3", "kill FOLLOWER at 1.5 for 0.3"),
    # A follower dies between its last fetch and the write that takes it into the ISR (BUG-23).
    Order(
        "cut from other brokers FOLLOWER at 0 for 4",
        "cut from ZooKeeper LEADER at 3.8 for 2.5",
        "kill FOLLOWER at 4.8 for 3",
    ),
    # Control requests do not come through (BUG-4).
    Order("cut from the controller FOLLOWER at 0 for 9", "restart LEADER at 0.3 for 2"),
    Order("cut from the controller OTHER at 0 for 9", "kill LEADER at 0.3 for 20"),
    # They come late, also by a connection that was given up, to a replica that has gone and come (BUG-20).
    Order("slow links FOLLOWER at 0 for 4", "move the replica FOLLOWER at 0.5 for 4"),
    Order("move the replica FOLLOWER at 0 for 1", "cut from the controller FOLLOWER at 0.45 for 3", replicas=2),
    Order("move the replica FOLLOWER at 0 for 1", "cut from the controller OUTSIDER at 0.6 for 4", replicas=2),
    # A new leader hears between two batches of a producer that it leads (INV-20).
    Order("slow links FOLLOWER at 0 for 6", "kill LEADER at 2 for 3"),
    # A replica comes to a broker that can open no file (BUG-21).
    Order("scarce descriptors OUTSIDER at 0 for 3", "move the replica FOLLOWER at 0.3 for 5", replicas=2),
    # A batch is refused, and the next one comes when the ISR is large enough again (INV-20).
    Order("kill FOLLOWER at 0 for 1.5", "slow links LEADER at 0.8 for 2", replicas=2, producers=3, pauses=0.1),
    # What clients have given up comes late (KIP-890).
    Order("cut from clients LEADER at 0 for 2", transactional=2),
    # After a start, a file that is not open yet cannot be opened.
    Order("kill FOLLOWER at 0 for 1", "scarce descriptors FOLLOWER at 2 for 5"),
    # A transaction is aborted, and the list of aborted ones cannot be read (LOG-7).
    Order(
        "restart LEADER at 0 for 0.3",
        "scarce descriptors FOLLOWER at 0.4 for 3",
        "scarce descriptors FOLLOWER at 0.42 for 3",
        "scarce descriptors FOLLOWER at 0.44 for 3",
        "elect FOLLOWER at 0.5 for 0.6",
        replicas=2,
        transactional=3,
        pauses=0.25,
        settings=NO_BALANCE,
    ),
    # Files that were synced are closed for others, while answers are sent from them.
    Order(
        "few open files LEADER at 0 for 4",
        "pause LEADER at 1 for 0.7",
        "pause LEADER at 2.2 for 0.7",
        is_rare=True,
        partitions={"topic0": 4},
        configs={},
        sent_from_file=200,
        replicas=2,
        producers=3,
        readers=3,
        pauses=0.25,
        settings=SYNCED,
    ),
    # A leader does not hear ZooKeeper (BUG-7).
    Order("cut from ZooKeeper LEADER at 0 for 7"),
)

RARE: Sequence[Order] = [sequence for sequence in SEQUENCES if sequence.is_rare]
