"""Which transactions of a log are being verified (KIP-890, Kafka's VerificationGuard). Pure.

A client's first batch of a transaction is appended only after the transaction coordinator has said that the partition is in the
transaction: otherwise a batch that arrives late, after the marker, would begin a transaction that nobody ends. While the coordinator is
asked, the log changes. If a marker or another batch of the transaction comes meanwhile, the answer may be about an earlier
transaction. Each question therefore has a *guard*, which such a batch makes void.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class VerificationGuard:
    """Made before the coordinator is asked."""

    __slots__ = ()


class Verifying:
    """`guards`: the valid guards of one log, by producer id. Usually there are none: then an append only looks whether it is empty."""

    __slots__ = ("guards",)

    def __init__(self) -> None:
        self.guards: dict[int, set[VerificationGuard]] = {}

    def begin(self, producer_id: int) -> VerificationGuard:
        """A guard that is valid until a transactional batch or a marker of the producer is in the log, or until `end`."""
        guard = VerificationGuard()
        self.guards.setdefault(producer_id, set()).add(guard)
        return guard

    def is_valid(self, producer_id: int, guard: VerificationGuard) -> bool:
        return guard in self.guards.get(producer_id, ())

    def end(self, producer_id: int, guard: VerificationGuard) -> None:
        """The request that made the guard is answered."""
        guards = self.guards.get(producer_id)
        if guards is not None:
            guards.discard(guard)
            if not guards:
                del self.guards[producer_id]

    def note(self, headers: Sequence[BatchHeader]) -> None:
        """These batches are in the log."""
        for header in headers:
            if header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                self.guards.pop(header.producer_id, None)
