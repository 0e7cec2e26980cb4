"""Which transactions of a log are verified, before their first batch (KIP-890, Kafka's VerificationGuard). Pure.

A transaction's first batch is appended only after the transaction coordinator has said that the partition is in the transaction:
otherwise a batch that arrives late, after the marker, would begin a transaction that nobody ends. While the coordinator is asked, the
log changes. If a marker or another batch of the transaction comes meanwhile, the answer may be about an earlier transaction. Each
question therefore has a *guard*, which such a batch makes void. A transaction whose question had a valid guard until the answer is
*verified* until its first batch, from which on the log itself says that it is ongoing, or until its marker.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class VerificationGuard:
    """Made before the coordinator is asked."""

    __slots__ = ()


class VerifiedTransactions:
    """Those of one log. Usually both dicts are empty: then an append only looks whether they are.

    `guards`: the valid ones, by producer id. `epochs`: the producer's epoch in its verified transaction, by producer id.
    """

    __slots__ = ("epochs", "guards")

    def __init__(self) -> None:
        self.guards: dict[int, set[VerificationGuard]] = {}
        self.epochs: dict[int, int] = {}

    def begin(self, producer_id: int) -> VerificationGuard:
        """A guard that is valid until a transactional batch or a marker of the producer is in the log."""
        guard = VerificationGuard()
        self.guards.setdefault(producer_id, set()).add(guard)
        return guard

    def end(self, producer_id: int, guard: VerificationGuard, epoch: int | None) -> None:
        """The coordinator has answered. `epoch`: the partition is in the producer's transaction in this epoch. None: it is not, or
        there is no answer."""
        guards = self.guards.get(producer_id)
        if guards is None or guard not in guards:
            return
        guards.discard(guard)
        if not guards:
            del self.guards[producer_id]
        if epoch is not None:
            self.epochs[producer_id] = epoch

    def note(self, headers: Sequence[BatchHeader]) -> None:
        """These batches are in the log."""
        for header in headers:
            if header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                self.guards.pop(header.producer_id, None)
                self.epochs.pop(header.producer_id, None)
