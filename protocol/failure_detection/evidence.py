"""Judges from attempts to connect whether a process is dead (CTL-16). Pure.

Only a refusal is evidence: the host is up, has the address, and nobody listens. A timeout, an unreachable host or network, or a name
that cannot be resolved proves nothing about the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

REFUSALS_NEEDED = 4
SPACING_S = 0.02
"""Pause after a refusal: four attempts take 60 ms."""


class Answer(Enum):
    """The result of one attempt to connect."""

    ACCEPTED = auto()
    REFUSED = auto()
    UNCLEAR = auto()


class Liveness(Enum):
    """The state after one more answer. SUSPECTED: refused, but not yet REFUSALS_NEEDED times. UNKNOWN: the answer proves nothing."""

    LIVES = auto()
    SUSPECTED = auto()
    DEAD = auto()
    UNKNOWN = auto()


def answer_of(errors: Sequence[OSError]) -> Answer:
    """The result of an attempt that failed with these errors, one for each address of the host. REFUSED if all are refusals."""
    if errors and all(isinstance(error, ConnectionRefusedError) for error in errors):
        return Answer.REFUSED
    return Answer.UNCLEAR


class Evidence:
    """Counts refusals in a row. Any other answer resets the count, and so does the result DEAD."""

    def __init__(self) -> None:
        self._refusals = 0

    def note(self, answer: Answer) -> Liveness:
        if answer is not Answer.REFUSED:
            self._refusals = 0
            return Liveness.LIVES if answer is Answer.ACCEPTED else Liveness.UNKNOWN
        self._refusals += 1
        if self._refusals < REFUSALS_NEEDED:
            return Liveness.SUSPECTED
        self._refusals = 0
        return Liveness.DEAD


class Judgements:
    """The ZooKeeper sessions whose brokers this process must not judge dead again.

    If a session whose broker was judged dead registers again, the judgement was wrong: something other than the broker refuses
    connections at its address. Without this class, the wrong judgement would be repeated for ever.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._refuted: dict[int, int] = {}

    def note(self, broker: int, session_id: int) -> None:
        """Records that this process judged the session's broker dead."""
        self._refuted[broker] = session_id

    def see(self, broker: int, session_id: int, broker_epoch: int) -> None:
        """Records a registration. Two registrations in one session mean that somebody deleted the first."""
        seen_session, seen_epoch = self._seen.get(broker, (session_id, broker_epoch))
        if seen_session == session_id and seen_epoch != broker_epoch:
            self._refuted[broker] = session_id
        self._seen[broker] = (session_id, broker_epoch)

    def is_refuted(self, broker: int, session_id: int) -> bool:
        """Whether the session was judged dead before, by any process. Its broker then counts as dead only when the session ends."""
        return self._refuted.get(broker) == session_id
