"""Moves of replicas between the log directories of their brokers: `log_dirs` in a reassignment file (KIP-113).

The request goes to each broker, not to the controller. A broker that does not have the replica yet remembers the directory and
creates the replica there when the reassignment adds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.admin.reassign_plan import Place, Replica

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

POLL_S = 0.1
PATIENCE_S = 10.0
"""How long to wait until the reassignment has created a replica, as in Kafka's tool."""
NOT_THERE_YET = "REPLICA_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class DirectoryOutcome:
    """The state of one replica's move."""

    replica: Replica
    target: str
    place: Place

    @property
    def is_done(self) -> bool:
        return self.place.current == self.target

    @property
    def is_under_way(self) -> bool:
        return not self.is_done and self.place.future == self.target

    @property
    def sentence(self) -> str:
        """The state in one sentence, in Kafka's words where Kafka's tool has the same state."""
        if self.is_done:
            return f"Reassignment of replica {self.replica} completed successfully."
        if self.is_under_way:
            return f"Reassignment of replica {self.replica} is still in progress."
        if self.place.future is not None:
            return (
                f"Reassignment of replica {self.replica} failed: it is being moved to {self.place.future} "
                f"instead of {self.target}."
            )
        if self.place.current is None:
            broker = self.replica.broker
            return f"Partition {self.replica.partition} cannot be found in any live log directory on broker {broker}."
        return f"Replica {self.replica} is in {self.place.current} and does not move to {self.target}."

    def as_json(self) -> dict[str, Any]:
        state = "completed" if self.is_done else "in_progress" if self.is_under_way else "failed"
        return {
            "topic": self.replica.partition.topic,
            "partition": self.replica.partition.partition,
            "broker": self.replica.broker,
            "state": state,
            "target": self.target,
            "log_dir": self.place.current,
        }


class DirectoryMoves:
    """Starts the moves of replicas and waits for them. `now` and `pause` are the clock, in seconds."""

    def __init__(
        self,
        admin: KafkaAdmin,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._admin = admin
        self._now = now
        self._pause = pause

    def announce(self, targets: Mapping[Replica, str]) -> None:
        """Call before the reassignment: new replicas are then created in these directories. Existing replicas start to move.

        Raises AdminError.
        """
        if targets:
            self._admin.alter_log_directories(targets)

    def start(self, targets: Mapping[Replica, str]) -> dict[Replica, str]:
        """Call after the reassignment started. Returns the refused replicas with reasons. Raises AdminError."""
        refused: dict[Replica, str] = {}
        waiting = dict(targets)
        deadline = self._now() + PATIENCE_S
        while waiting:
            answers = self._admin.alter_log_directories(waiting)
            late = {replica for replica, error in answers.items() if error is not None and error[0] == NOT_THERE_YET}
            if self._now() >= deadline:
                late = set()
            for replica, error in answers.items():
                if error is not None and replica not in late:
                    refused[replica] = f"{replica} to {targets[replica]}: {error[1]}"
            waiting = {replica: target for replica, target in waiting.items() if replica in late}
            if waiting:
                self._pause(POLL_S)
        return refused

    def outcomes(self, targets: Mapping[Replica, str]) -> list[DirectoryOutcome]:
        """The state of each move. Raises AdminError."""
        places = self._admin.log_directories(targets.keys()) if targets else {}
        return [DirectoryOutcome(replica, target, places.get(replica, Place())) for replica, target in targets.items()]

    def wait(self, targets: Mapping[Replica, str]) -> list[DirectoryOutcome]:
        """Waits until all moves have ended. Raises AdminError."""
        while True:
            found = self.outcomes(targets)
            if not any(outcome.is_under_way for outcome in found):
                return found
            self._pause(POLL_S * 5)
