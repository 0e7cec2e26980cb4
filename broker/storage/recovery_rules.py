"""What recovery believes (LOG-2, INV-21, FLT-27). Pure.

A batch's CRC covers all but its first 16 bytes, and of these its base offset and its leader epoch can be wrong without
being seen at once. They are judged by what stands around them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

from protocol.kafka.record_batch import BatchHeader

EpochEntry = tuple[int, int]
"""(leader epoch, its first offset)"""

NEW_EPOCHS_MAX = 2**16
"""How far the epoch of a log's last batch may be ahead of all known ones: elections that this replica did not write down."""


class Judge:
    """Goes with the verification through a log, batch by batch; `epochs` are those of the batches it believed.

    An offset that leaves a hole (compaction makes them) and an epoch that rises need a witness: the batch that follows,
    the recovery point, the next segment's name, or the epoch checkpoint (`stored`, empty when there is none).

    The last batch of the log has no follower, and the checkpoint is written in the background. When all replicas are killed
    just after an election, nothing bears witness to the first batch of the new epoch, and it may be acknowledged. So it is
    believed if its epoch is newer than all known ones, by at most NEW_EPOCHS_MAX; a wrong bit there is not seen.
    """

    def __init__(self, stored: Sequence[EpochEntry], recovery_point: int, cleaned_up_to: int = 0) -> None:
        self.epochs: list[EpochEntry] = []
        self._stored = stored
        self._recovery_point = recovery_point
        self._holes_end = max(recovery_point, cleaned_up_to)
        self._end = 0
        self._next_base: int | None = None
        self._next_first: BatchHeader | None = None

    def begin_segment(self, base_offset: int, next_base: int | None, next_first: BatchHeader | None) -> None:
        """`next_base`: where the next segment starts, None for the last. `next_first`: its first batch, if it has one."""
        self._end = base_offset
        self._next_base = next_base
        self._next_first = next_first

    def is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        """Whether a batch with the right CRC may stand where it is; if so, it is taken note of."""
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
        goes_on_at = following.base_offset if following is not None else self._next_base
        # Not equal: after compaction one hole follows another. A wrong offset that is too large would overlap what follows.
        return goes_on_at is not None and header.next_offset <= goes_on_at

    def _epoch_is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        epoch = header.partition_leader_epoch
        latest = self.epochs[-1][0] if self.epochs else -1
        if epoch < latest:
            return False
        if header.next_offset <= self._recovery_point or self._checkpoint_says(epoch, header.base_offset):
            return True
        if any(known == epoch and header.base_offset < start for known, start in self._stored[1:]):
            return False  # it began later
        if following is None:
            known = max(latest, self._stored[-1][0]) if self._stored else latest
            return epoch == latest or not self._stored or 0 < epoch - known <= NEW_EPOCHS_MAX
        if self._checkpoint_says(following.partition_leader_epoch, header.base_offset):
            return False  # two witnesses for another epoch
        return epoch == latest or following.partition_leader_epoch >= epoch

    def _checkpoint_says(self, epoch: int, offset: int) -> bool:
        """The checkpoint gives that epoch to `offset`, or knows only what came after both."""
        at = bisect_right(self._stored, offset, key=itemgetter(1)) - 1
        if at >= 0:
            return self._stored[at][0] == epoch
        return bool(self._stored) and epoch <= self._stored[0][0]


def rising(entries: Iterable[EpochEntry]) -> list[EpochEntry]:
    """Those whose epoch is above all before it."""
    kept: list[EpochEntry] = []
    for epoch, start in entries:
        if not kept or epoch > kept[-1][0]:
            kept.append((epoch, start))
    return kept


def rebuilt_epochs(
    stored: Sequence[EpochEntry], found: Sequence[EpochEntry], *, read_from: int, end_offset: int
) -> list[EpochEntry]:
    """The epochs of a log: the checkpoint's below `read_from`, from there on those that the batches have (`found`).

    An epoch that starts at the very end has no batch and counts all the same (BUG-15).
    """
    before = [entry for entry in stored if entry[1] < read_from and (not found or entry[0] <= found[0][0])]
    at_the_end = [entry for entry in stored if entry[1] == end_offset]
    return rising([*before, *found, *at_the_end])
