"""Which batches recovery accepts (LOG-2, INV-21, FLT-27). Pure.

A batch's CRC does not cover its first 16 bytes. A damaged base offset or leader epoch in them is therefore not visible in the
batch itself. Recovery compares these two fields with what surrounds the batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

from protocol.kafka.record_batch import BatchHeader

EpochEntry = tuple[int, int]
"""(leader epoch, its first offset)"""

NEW_EPOCHS_MAX = 2**16
"""How far the leader epoch of the last batch may be above all known ones, as the checkpoint may lack the latest elections."""


class Judge:
    """Judges the batches of a log in order. `epochs` has the leader epochs of the batches that it accepted.

    An offset that leaves a hole (compaction makes holes) and a leader epoch that rises need evidence: the next batch, the recovery
    point, the name of the next segment, or the leader epoch checkpoint (`stored`, empty if there is none).

    The last batch of the log has no next batch, and the checkpoint is written by flushes. If all replicas are killed just after an
    election, there is no evidence for the first batch of the new epoch, but it may be acknowledged. It is therefore accepted if its
    epoch is above those of the batches before it, by at most NEW_EPOCHS_MAX. A damaged bit in that range is not detected. Epochs that
    the checkpoint has from the recovery point on do not count: they may have been cut, and the file not written since.
    """

    def __init__(self, stored: Sequence[EpochEntry], recovery_point: int, holes_up_to: int = 0) -> None:
        self.epochs: list[EpochEntry] = []
        self._stored = stored
        self._recovery_point = recovery_point
        self._holes_end = max(recovery_point, holes_up_to)
        synced = bisect_left(stored, recovery_point, key=itemgetter(1))
        self._synced_epoch = stored[synced - 1][0] if synced else -1
        self._end = 0
        self._next_base: int | None = None
        self._next_first: BatchHeader | None = None

    def begin_segment(self, base_offset: int, next_base: int | None, next_first: BatchHeader | None) -> None:
        """`next_base`: where the next segment starts, None for the last. `next_first`: its first batch, if it has one."""
        self._end = base_offset
        self._next_base = next_base
        self._next_first = next_first

    def is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        """Whether to accept a batch whose CRC is right. If so, it becomes the last accepted batch."""
        if not (
            self._offset_is_believed(header, following)
            and self._epoch_is_believed(header, following or self._next_first)
        ):
            return False
        self._end = header.next_offset
        if not self.epochs or header.partition_leader_epoch > self.epochs[-1][0]:
            self.epochs.append((header.partition_leader_epoch, header.base_offset))
        return True

    def _offset_is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        if header.base_offset < self._end or (self._next_base is not None and header.next_offset > self._next_base):
            return False
        if header.base_offset == self._end or header.next_offset <= self._holes_end:
            return True
        next_offset = following.base_offset if following is not None else self._next_base
        # They need not be equal, as one hole of compaction may follow another. A damaged offset that is too large would overlap
        # the next batch.
        return next_offset is not None and header.next_offset <= next_offset

    def _epoch_is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        epoch = header.partition_leader_epoch
        latest = self.epochs[-1][0] if self.epochs else -1
        if epoch < latest:
            return False
        if header.next_offset <= self._recovery_point or self._checkpoint_says(epoch, header.base_offset):
            return True
        if any(known == epoch and header.base_offset < start for known, start in self._stored[1:]):
            return False  # that epoch starts later
        if following is None:
            known = max(latest, self._synced_epoch)
            return epoch == latest or not self._stored or 0 < epoch - known <= NEW_EPOCHS_MAX
        if self._checkpoint_says(following.partition_leader_epoch, header.base_offset):
            return False  # the next batch and the checkpoint agree on another epoch
        return epoch == latest or following.partition_leader_epoch >= epoch

    def _checkpoint_says(self, epoch: int, offset: int) -> bool:
        """True if the checkpoint has `epoch` at `offset`, or only later epochs that start above it."""
        at = bisect_right(self._stored, offset, key=itemgetter(1)) - 1
        if at >= 0:
            return self._stored[at][0] == epoch
        return bool(self._stored) and epoch <= self._stored[0][0]


def rising(entries: Iterable[EpochEntry]) -> list[EpochEntry]:
    """The entries whose epoch is above that of every earlier entry."""
    kept: list[EpochEntry] = []
    for epoch, start in entries:
        if not kept or epoch > kept[-1][0]:
            kept.append((epoch, start))
    return kept


def rebuilt_epochs(
    stored: Sequence[EpochEntry], found: Sequence[EpochEntry], *, read_from: int, end_offset: int
) -> list[EpochEntry]:
    """The leader epochs of a log: below `read_from` those of the checkpoint, from there on those of the batches (`found`).

    An epoch that starts at the log end offset has no batch yet, but is kept (BUG-15).
    """
    before = [entry for entry in stored if entry[1] < read_from and (not found or entry[0] <= found[0][0])]
    at_the_end = [entry for entry in stored if entry[1] == end_offset]
    return rising([*before, *found, *at_the_end])
