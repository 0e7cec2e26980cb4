"""What is in the logs in the end: the records of each partition, and the transactions that they belong to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Place = tuple[str, int]
"""(topic, partition)"""


class Outcome(Enum):
    """How a transaction ended in a partition, as its control record says. OPEN: there is none."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class LogTransaction:
    """A transaction in one partition: from the first batch of its producer to the next control record of that producer (KIP-98)."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    outcome: Outcome


class OpenTransaction(NamedTuple):
    """Who holds the last stable offset of a partition.

    `transactional_id`: empty if no coordinator knows a transaction of this producer. `is_stuck`: nobody will end it: no coordinator knows
    of it, or its time-out is over. `is_decided`: its coordinator has decided how it ends, and writes the control records.
    """

    producer_id: int
    first_offset: int
    transactional_id: str = ""
    is_stuck: bool = False
    words: str = ""
    is_decided: bool = False


class Unfenced(NamedTuple):
    """A batch of an epoch that is older than one that the same producer id had in the log before."""

    offset: int
    producer_id: int
    epoch: int
    newer: int


class LoggedBatch(NamedTuple):
    """What a batch's header says. `marker`: whether a control record commits; None for a batch of records."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    marker: bool | None = None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What can be read of a partition: offset -> id of the record.

    `start` is the first offset that was read: what is below it is not judged. `is_whole`: it was read to its end; if not,
    nothing is said about what is not in it. Records below `own_start` were there before the program, which may have used the same ids in
    an earlier run: they are never its own.
    """

    start: int
    end: int
    ids: Mapping[int, str]
    is_whole: bool = True
    own_start: int = 0
    transactions: Mapping[int, LogTransaction] | None = None
    """By the offsets of their records; None: nothing is known of transactions, so all records count as without."""
    open: Sequence[OpenTransaction] = ()
    unfenced: Sequence[Unfenced] = ()
    problem: str = ""
    """Why it is not whole, if somebody says that."""

    @property
    def has_deleted(self) -> bool:
        """Whether records of the program were deleted since."""
        return self.start > self.own_start

    def outcome(self, offset: int) -> Outcome:
        """Of the transaction of that record; a record without one is committed."""
        found = self.transactions.get(offset) if self.transactions else None
        return Outcome.COMMITTED if found is None else found.outcome

    @property
    def stable_end(self) -> int:
        """The last stable offset: readers of committed records get nothing from there on."""
        return min((each.first_offset for each in self.open), default=self.end)


Logs = Mapping[Place, PartitionLog]
Positions = Mapping[tuple[str, str, int], int]
"""(group, topic, partition) -> the offset that the cluster holds as committed in the end, or NO_POSITION."""
NO_POSITION = -1
NO_LOG = PartitionLog(0, 0, {})


def places_by_id(logs: Logs) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(topic, id) -> (partition, offset) of its copies since the start of the program, in order."""
    where: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), log in sorted(logs.items()):
        for offset, id_ in sorted(log.ids.items()):
            if offset >= log.own_start:
                where[topic, id_].append((partition, offset))
    return dict(where)


def committed_places(
    where: Mapping[tuple[str, str], Sequence[tuple[int, int]]], logs: Logs
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Of `places_by_id`, the copies that a reader of committed records gets."""
    found = {}
    for record, copies in where.items():
        seen = [
            (partition, offset)
            for partition, offset in copies
            if logs[record[0], partition].outcome(offset) is Outcome.COMMITTED
        ]
        if seen:
            found[record] = seen
    return found


def transactions_in(batches: Iterable[LoggedBatch]) -> tuple[dict[int, LogTransaction], list[OpenTransaction]]:
    """The transactions of a partition by the offsets of their records, and those that are open at its end, in the order of their begin.

    A producer has one transaction at a time. Its control record may have a newer epoch: the coordinator raises it when it aborts a
    transaction after its time-out, and at each end since KIP-890.
    """
    found: dict[int, LogTransaction] = {}
    running: dict[int, list[LoggedBatch]] = {}

    def end(producer: int, outcome: Outcome) -> None:
        held = running.pop(producer, [])
        if not held:
            return  # compaction has removed its records, or it began before the first batch
        each = LogTransaction(producer, held[0].producer_epoch, held[0].base_offset, outcome)
        for batch in held:
            found.update(dict.fromkeys(range(batch.base_offset, batch.last_offset + 1), each))

    for batch in batches:
        if batch.marker is not None:
            end(batch.producer_id, Outcome.COMMITTED if batch.marker else Outcome.ABORTED)
        elif batch.is_transactional:
            running.setdefault(batch.producer_id, []).append(batch)
    left = [OpenTransaction(producer, held[0].base_offset) for producer, held in running.items()]
    for producer in list(running):
        end(producer, Outcome.OPEN)
    return found, sorted(left, key=lambda each: each.first_offset)


def unfenced_in(batches: Iterable[LoggedBatch]) -> list[Unfenced]:
    """Kafka refuses a batch whose epoch is older than the producer's last one in the partition (ProducerAppendInfo.checkProducerEpoch)."""
    newest: dict[int, int] = {}
    found = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        newer = newest.get(batch.producer_id, batch.producer_epoch)
        if batch.producer_epoch < newer:
            found.append(Unfenced(batch.base_offset, batch.producer_id, batch.producer_epoch, newer))
        newest[batch.producer_id] = max(newer, batch.producer_epoch)
    return found
