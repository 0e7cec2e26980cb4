"""What recovery believes (LOG-2, INV-21, FLT-27). Pure.

A batch's CRC covers all but its first 16 bytes, and of these its base offset and its leader epoch can be wrong without
being seen at once. They are judged by what stands around them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.kafka.record_batch import BatchHeader

EpochEntry = tuple[int, int]
"""(leader epoch, its first offset)"""


class Judge:
    """Goes with the verification through a log, batch by batch; `epochs` are those of the batches it believed.

    An offset that leaves a hole (compaction makes them) and an epoch that rises need a witness: the batch that follows,
    the recovery point, the next segment's name, or the epoch checkpoint (`known_epochs`, empty when there is none).
    """

    def __init__(self, known_epochs: Collection[int], recovery_point: int) -> None:
        self.epochs: list[EpochEntry] = []
        self._known_epochs = known_epochs
        self._recovery_point = recovery_point
        self._end = 0
        self._next_base: int | None = None

    def begin_segment(self, base_offset: int, next_base: int | None) -> None:
        """`next_base`: where the segment after it begins, None for the last."""
        self._end = base_offset
        self._next_base = next_base

    def is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        """Whether a batch with the right CRC may stand where it is; if so, it is taken note of."""
        if not (self._offset_is_believed(header, following) and self._epoch_is_believed(header, following)):
            return False
        self._end = header.next_offset
        self.take_epoch(header)
        return True

    def take_epoch(self, header: BatchHeader) -> None:
        """Notes the epoch of a batch that needs no verification."""
        if not self.epochs or header.partition_leader_epoch > self.epochs[-1][0]:
            self.epochs.append((header.partition_leader_epoch, header.base_offset))

    def _offset_is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        if header.base_offset < self._end or (self._next_base is not None and header.next_offset > self._next_base):
            return False
        if header.base_offset == self._end or header.next_offset <= self._recovery_point:
            return True
        goes_on_at = following.base_offset if following is not None else self._next_base
        return goes_on_at == header.next_offset

    def _epoch_is_believed(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        epoch = header.partition_leader_epoch
        latest = self.epochs[-1][0] if self.epochs else -1
        if epoch < latest:
            return False
        if epoch == latest or epoch in self._known_epochs or header.next_offset <= self._recovery_point:
            return True
        if following is not None:
            return following.partition_leader_epoch >= epoch
        return not self._known_epochs


def rebuilt_epochs(
    stored: Sequence[EpochEntry], found: Sequence[EpochEntry], *, read_from: int, end_offset: int
) -> list[EpochEntry]:
    """The epochs of a log: the checkpoint's below `read_from`, from there on those that the batches have (`found`).

    An epoch that begins at the very end has no batch and counts all the same (BUG-15).
    """
    entries = [entry for entry in stored if entry[1] < read_from and (not found or entry[0] <= found[0][0])]
    for epoch, start in found:
        if not entries or epoch > entries[-1][0]:
            entries.append((epoch, start))
    for epoch, start in stored:
        if start == end_offset and (not entries or epoch > entries[-1][0]):
            entries.append((epoch, start))
    return entries
