"""Which transactions of a log are verified, before their first batch (KIP-890, Kafka's VerificationGuard). Pure.

A transaction's first batch is appended only after the transaction coordinator has said that the partition is in the transaction:
otherwise a batch that arrives late, after the marker, would begin a transaction that nobody ends. While the coordinator is asked, the
log changes. If a marker or another batch of the transaction comes meanwhile, the answer may be about an earlier transaction. Each
question therefore has a *guard*, which such a batch makes void. A transaction whose question had a valid guard until the answer is
*verified* until its first batch, from which on the log itself says that it is ongoing, or until its marker.

In transaction version 2 the marker of a transaction has the epoch of the producer's next transaction, about which may be asked before the
marker is here. So a marker with a raised epoch is only about transactions of earlier epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class VerificationGuard:
    """Made before the coordinator is asked about the producer's transaction in this epoch."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class VerifiedTransactions:
    """Those of one log. Usually both dicts are empty: then an append only looks whether they are.

    `guards`: the valid ones, by producer id. `epochs`: the producer's epoch in its verified transaction, by producer id.
    """

    __slots__ = ("epochs", "guards")

    def __init__(self) -> None:
        self.guards: dict[int, set[VerificationGuard]] = {}
        self.epochs: dict[int, int] = {}

    def begin(self, producer_id: int, epoch: int) -> VerificationGuard:
        """A guard that is valid until a transactional batch or a marker of the producer is in the log."""
        guard = VerificationGuard(epoch)
        self.guards.setdefault(producer_id, set()).add(guard)
        return guard

    def end(self, producer_id: int, guard: VerificationGuard, *, is_verified: bool) -> None:
        """The coordinator has answered. `is_verified`: the partition is in the producer's transaction in the guard's epoch."""
        guards = self.guards.get(producer_id)
        if guards is None or guard not in guards:
            return
        guards.discard(guard)
        if not guards:
            del self.guards[producer_id]
        if is_verified:
            self.epochs[producer_id] = guard.epoch

    def note(self, headers: Sequence[BatchHeader], *, is_epoch_raised: bool = False) -> None:
        """These batches are in the log. `is_epoch_raised`: it is a marker in the epoch after that of its transaction."""
        for header in headers:
            if not header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                continue
            producer_id = header.producer_id
            if is_epoch_raised:
                self._drop_before(producer_id, header.producer_epoch)
            else:
                self.guards.pop(producer_id, None)
                self.epochs.pop(producer_id, None)

    def _drop_before(self, producer_id: int, epoch: int) -> None:
        valid = {guard for guard in self.guards.pop(producer_id, ()) if guard.epoch >= epoch}
        if valid:
            self.guards[producer_id] = valid
        if self.epochs.get(producer_id, epoch) < epoch:
            del self.epochs[producer_id]
