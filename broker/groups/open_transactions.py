"""The transactions that commit offsets in one partition of `__consumer_offsets`: whose offsets wait for a marker, and who was verified.

A producer's first commit of a transaction is verified: its transaction coordinator says whether the partition belongs to the ongoing
transaction (KIP-890). Otherwise a commit that arrives after the marker would start a transaction that nobody ends. The answer takes a
round trip, so a marker may be appended meanwhile: then the verification does not count (Kafka's VerificationGuard). Later commits of
the same producer epoch need no verification, until the marker.

Here nothing is decided by time; all methods are called on the loop.
"""

from __future__ import annotations

from typing import NamedTuple


class Verification:
    """A verification under way. `is_valid` becomes false when a marker of the producer is appended. Compared by identity."""

    __slots__ = ("is_valid", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.is_valid = True


class EndedTransaction(NamedTuple):
    """A replicated marker, at `marker_offset` in the partition."""

    producer_id: int
    marker_offset: int
    is_commit: bool


class OpenTransactions:
    """See the module. A partition that is gained again starts with a new object, which the load fills."""

    __slots__ = ("_ended", "_groups", "_verifications", "_verified")

    def __init__(self) -> None:
        self._groups: dict[int, set[str]] = {}
        """Producer -> the groups with offsets of its transaction."""
        self._verified: dict[int, int] = {}
        """Producer -> the epoch in which its ongoing transaction was verified."""
        self._verifications: dict[int, set[Verification]] = {}
        self._ended: dict[int, EndedTransaction] = {}

    # -- offsets that wait for a marker -------------------------------------------------------------------------------

    def add(self, producer_id: int, group_id: str) -> None:
        self._groups.setdefault(producer_id, set()).add(group_id)

    def discard(self, producer_id: int, group_id: str) -> None:
        groups = self._groups.get(producer_id)
        if groups is not None:
            groups.discard(group_id)
            if not groups:
                del self._groups[producer_id]

    def groups_of(self, producer_id: int) -> list[str]:
        """A snapshot."""
        return list(self._groups.get(producer_id, ()))

    def ended_early(self, ended: EndedTransaction) -> None:
        """Notes a marker that was replicated while the partition was being loaded. A producer's first marker decides about its
        offsets: all of them were written by earlier leaders, and so before it."""
        self._ended.setdefault(ended.producer_id, ended)

    def take_ended_early(self) -> list[EndedTransaction]:
        ended = list(self._ended.values())
        self._ended.clear()
        return ended

    # -- verification -------------------------------------------------------------------------------------------------

    def is_verified(self, producer_id: int, producer_epoch: int) -> bool:
        return self._verified.get(producer_id) == producer_epoch

    def begin_verification(self, producer_id: int, producer_epoch: int) -> Verification:
        verification = Verification(producer_id, producer_epoch)
        self._verifications.setdefault(producer_id, set()).add(verification)
        return verification

    def end_verification(self, verification: Verification, *, is_confirmed: bool) -> None:
        """Called once for each verification, whatever becomes of it."""
        producer_id = verification.producer_id
        others = self._verifications[producer_id]
        others.remove(verification)
        if not others:
            del self._verifications[producer_id]
        if is_confirmed and verification.is_valid:
            self._verified[producer_id] = verification.producer_epoch

    def marker_comes(self, producer_id: int) -> None:
        """Called just before a marker is appended. If that fails, the next commit is only verified once more."""
        self._verified.pop(producer_id, None)
        for verification in self._verifications.get(producer_id, ()):
            verification.is_valid = False
