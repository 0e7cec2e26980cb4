"""How the reported transactions really ended: which records in the logs are theirs, and what the control records say. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.judge.logs import Logs, Outcome
from tools.judge.tables import Tables, Transaction

Copies = Mapping[tuple[str, str], Sequence[tuple[int, int]]]
"""(topic, id) -> (partition, offset) of each, as `places_by_id` finds them."""
Span = tuple[str, int, int, int]
"""A transaction of a log: topic, partition, producer id, first offset."""


@dataclass
class Ended:
    """A reported transaction. `records`: (topic, partition, offset, id) -> how it ended there."""

    told: Transaction
    records: dict[tuple[str, int, int, str], Outcome] = field(default_factory=dict)

    @property
    def outcomes(self) -> set[Outcome]:
        return set(self.records.values())

    @property
    def outcome(self) -> Outcome | None:
        """By the logs; without a record in them, by the program. None: nobody knows, or it is torn."""
        found = self.outcomes
        if found:
            return found.pop() if len(found) == 1 else None
        if self.told.ended is None:
            return None
        return Outcome.COMMITTED if self.told.is_committed else Outcome.ABORTED


def outcomes_of(tables: Tables, logs: Logs, where: Copies) -> dict[str, Ended]:
    """By the names of the transactions.

    A copy of a record belongs to the transaction that was acknowledged at its offset; else to the one whose other records are in the same
    transaction of the log; else to the only one that produced the record. Copies of which none of this is known belong to none.
    """
    ended = {name: Ended(told) for name, told in tables.transactions.items()}
    names = _names_of_spans(tables, logs)
    producers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, told in tables.transactions.items():
        for report in (*told.produced, *told.acked):
            producers[report.topic, report.id].add(name)
    for record, some in producers.items():
        may_be_of_none = any(not report.txn for report in tables.produced.get(record, ()))
        for partition, offset in where.get(record, ()):
            log = logs[record[0], partition]
            if log.transactions is None:
                continue
            owner = tables.by_place.get((record[0], partition, offset))
            if owner is None:
                owner = names.get(_span(logs, record[0], partition, offset))
            if owner is None and len(some) == 1 and not may_be_of_none:
                (owner,) = some
            if owner in some:
                ended[owner].records[record[0], partition, offset, record[1]] = log.outcome(offset)
    return ended


def _names_of_spans(tables: Tables, logs: Logs) -> dict[Span | None, str]:
    """Those of which an acknowledged offset is known."""
    names = {
        _span(logs, topic, partition, offset): name for (topic, partition, offset), name in tables.by_place.items()
    }
    names.pop(None, None)
    return names


def _span(logs: Logs, topic: str, partition: int, offset: int) -> Span | None:
    log = logs.get((topic, partition))
    found = log.transactions.get(offset) if log is not None and log.transactions else None
    return None if found is None else (topic, partition, found.producer_id, found.first_offset)
