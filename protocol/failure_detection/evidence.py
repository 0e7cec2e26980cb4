"""What attempts to connect say of a process (CTL-16). Pure.

Only a refusal says something: the host lives, answers for the address, and nobody listens there. Silence, an unreachable
host or network and a name that cannot be resolved say nothing of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

REFUSALS_NEEDED = 4
SPACING_S = 0.02
"""Between two attempts: four of them take 60 ms."""


class Answer(Enum):
    """To one attempt to connect."""

    ACCEPTED = auto()
    REFUSED = auto()
    UNCLEAR = auto()


class Liveness(Enum):
    """After one more answer. SUSPECTED: try again at once; UNKNOWN: there is nothing to do but to wait."""

    LIVES = auto()
    SUSPECTED = auto()
    DEAD = auto()
    UNKNOWN = auto()


def answer_of(errors: Sequence[OSError]) -> Answer:
    """Of an attempt that failed with these errors, one for each address of the host: all of them must have refused."""
    if errors and all(isinstance(error, ConnectionRefusedError) for error in errors):
        return Answer.REFUSED
    return Answer.UNCLEAR


class Evidence:
    """Refusals in a row. Any other answer begins anew, and so does a verdict."""

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
    """Which ZooKeeper sessions' brokers this process must not judge dead (any more).

    A session whose broker was judged dead and that registers again refutes the judgement: something else than the broker
    refuses in its name. It is not judged a second time, so that a wrong judgement is not repeated for ever.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._refuted: dict[int, int] = {}

    def note(self, broker: int, session_id: int) -> None:
        """That session's broker was judged dead here. If the session is ever there again, it was wrong."""
        self._refuted[broker] = session_id

    def see(self, broker: int, session_id: int, broker_epoch: int) -> None:
        """The broker is registered so. In two lives of one session, somebody has deleted its registration in between."""
        seen_session, seen_epoch = self._seen.get(broker, (session_id, broker_epoch))
        if seen_session == session_id and seen_epoch != broker_epoch:
            self._refuted[broker] = session_id
        self._seen[broker] = (session_id, broker_epoch)

    def is_refuted(self, broker: int, session_id: int) -> bool:
        """True when only the end of this session, which is there, may count as the broker's."""
        return self._refuted.get(broker) == session_id
