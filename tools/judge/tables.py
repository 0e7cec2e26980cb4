"""The reports of one program, sorted by what they say. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tools.judge.reports import (
    ABORTED_TXN,
    ACKED,
    ASSIGNED,
    BEGUN,
    COMMITTED,
    COMMITTED_TXN,
    COMMITTING,
    CONSUMED,
    FAILED,
    LEFT,
    PRODUCED,
    REVOKED,
    SENT_OFFSETS,
    Report,
)


@dataclass
class Transaction:
    """What a program reports about one transaction. `ended`: as committed or aborted; None: it does not know, or does not say."""

    name: str
    begun: Report | None = None
    produced: list[Report] = field(default_factory=list)
    acked: list[Report] = field(default_factory=list)
    failed: list[Report] = field(default_factory=list)
    consumed: list[Report] = field(default_factory=list)
    sent: list[Report] = field(default_factory=list)
    """Offsets, by `sent-offsets`."""
    committing: Report | None = None
    """The first one: a commit that is asked for again may have happened before."""
    ended: Report | None = None
    last: Report | None = None

    @property
    def is_committed(self) -> bool:
        return self.ended is not None and self.ended.event == COMMITTED_TXN

    @property
    def is_aborted(self) -> bool:
        return self.ended is not None and self.ended.event == ABORTED_TXN


@dataclass
class Tables:
    """All keep the order of the lines."""

    produced: dict[tuple[str, str], list[Report]] = field(default_factory=lambda: defaultdict(list))
    """By (topic, id)."""
    acked: dict[tuple[str, str], Report] = field(default_factory=dict)
    """By (topic, id): the last one."""
    failed: dict[tuple[str, str], Report] = field(default_factory=dict)
    consumed: dict[tuple[str, str, int], list[Report]] = field(default_factory=lambda: defaultdict(list))
    """By (group, topic, partition); so `committed`."""
    committed: dict[tuple[str, str, int], list[Report]] = field(default_factory=lambda: defaultdict(list))
    """With the offsets of transactions that were committed, at that time."""
    transactions: dict[str, Transaction] = field(default_factory=dict)
    by_place: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """(topic, partition, offset) -> the transaction in which a record was acknowledged there."""
    of_members: list[Report] = field(default_factory=list)
    """What members of groups say of their partitions, in order."""
    problems: list[str] = field(default_factory=list)

    @staticmethod
    def of(reports: Iterable[Report]) -> Tables:
        tables = Tables()
        for report in reports:
            tables._add(report)
        return tables

    def _add(self, report: Report) -> None:
        record = (report.topic, report.id)
        if report.event == PRODUCED:
            earlier = self.produced[record]
            if earlier and record not in self.failed and not self._is_tried_again(report, earlier[-1]):
                self._not_unique(report, earlier[-1])
            earlier.append(report)
        elif report.event == ACKED:
            known = self.acked.get(record)
            if known is not None and len(self.produced.get(record, ())) < 2 and not self._is_tried_again(report, known):
                self._not_unique(report, known)
            self.acked[record] = report
            self._note_place(report)
        elif report.event == FAILED:
            self.failed[record] = report
        elif report.event == CONSUMED:
            self.consumed[report.group, report.topic, report.partition or 0].append(report)
        elif report.event == COMMITTED:
            self.committed[report.group, report.topic, report.partition or 0].append(report)
        elif report.event in (ASSIGNED, REVOKED, LEFT):
            self.of_members.append(report)
        if report.txn:
            self._add_to_transaction(report)

    def _is_tried_again(self, report: Report, earlier: Report) -> bool:
        """Whether it is a record of another transaction than before: that one may be aborted, which the logs say."""
        return bool(report.txn and earlier.txn) and report.txn != earlier.txn

    def _note_place(self, report: Report) -> None:
        of = {each.txn for each in self.produced.get((report.topic, report.id), ())}
        txn = report.txn or (of.pop() if len(of) == 1 else "")
        if txn and report.offset is not None:
            self.by_place[report.topic, report.partition or 0, report.offset] = txn

    def _add_to_transaction(self, report: Report) -> None:
        known = self.transactions.setdefault(report.txn, Transaction(report.txn))
        if report.event == BEGUN:
            if known.last is not None:
                self.problems.append(
                    f"line {report.line}: transaction {report.txn!r} was there before, in line {known.last.line}; each transaction "
                    f"needs a name of its own"
                )
            known.begun = report
        elif report.event == PRODUCED:
            known.produced.append(report)
        elif report.event == ACKED:
            known.acked.append(report)
        elif report.event == FAILED:
            known.failed.append(report)
        elif report.event == CONSUMED:
            known.consumed.append(report)
        elif report.event == SENT_OFFSETS:
            known.sent.append(report)
        elif report.event == COMMITTING:
            known.committing = known.committing or report
        elif report.event in (COMMITTED_TXN, ABORTED_TXN):
            self._end(known, report)
        known.last = report

    def _end(self, known: Transaction, report: Report) -> None:
        if known.ended is not None and known.ended.event != report.event:
            self.problems.append(
                f"line {report.line}: {report.event} of transaction {report.txn!r}, of which line {known.ended.line} says "
                f"{known.ended.event}; a transaction whose end is not known has neither"
            )
        elif known.ended is None and report.event == COMMITTED_TXN:
            for sent in known.sent:
                self.committed[sent.group, sent.topic, sent.partition or 0].append(
                    replace(sent, order=report.order, at=report.at, line=report.line)
                )
        known.ended = report

    def _not_unique(self, report: Report, earlier: Report) -> None:
        self.problems.append(
            f"line {report.line}: the id {report.id!r} of topic {report.topic} was {report.event} before, in line "
            f"{earlier.line}; each record needs an id of its own"
        )

    def readers(self, topic: str) -> set[str]:
        """The groups that report about a topic."""
        return {group for group, of, _ in (*self.consumed, *self.committed) if of == topic}
