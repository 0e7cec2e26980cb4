"""Which leader epoch started at which offset of a log (KIP-101, Kafka's LeaderEpochFileCache). Pure except for `on_cut`.

An epoch covers the offsets from its start to the start of the next entry, the last epoch up to the LEO. Entries strictly
increase in epoch and do not decrease in offset (INV-19). An epoch without records has an entry, too (BUG-15).

The checkpoint file may lack new epochs until the next flush: a start finds those that have records in the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

UNDEFINED: Final = (-1, -1)
"""(epoch, end offset) if the log cannot answer for an epoch."""


class LeaderEpochCache:
    """The epochs of one log. `on_cut` is called when epochs were dropped that the checkpoint file may have."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self._epochs.append(epoch)
            self._starts.append(start)
        self.is_changed = False
        """The checkpoint file is out of date."""
        self.on_cut: Callable[[], None] = _ignore

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    def latest_epoch(self) -> int:
        """The newest epoch, -1 when there is none."""
        return self._epochs[-1] if self._epochs else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Adds an entry: `epoch` starts at `start_offset`. Does nothing if `epoch` is not newer than the newest.

        Epochs that start at or after `start_offset` have no records in the log, and are dropped.
        """
        if self._epochs and epoch <= self._epochs[-1]:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.is_changed = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the newest epoch not above `epoch`, the offset after its last record), or UNDEFINED.

        The newest epoch ends at the LEO. For an epoch above the newest the answer is UNDEFINED, as the asker knows more than this
        log. For an epoch below all entries the answer is `epoch` and the start of the first entry.
        """
        if not self._epochs or epoch < 0:
            return UNDEFINED
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        if epoch > self._epochs[-1]:
            return UNDEFINED
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return epoch, self._starts[0]
        return self._epochs[at - 1], self._starts[at]

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that covers `offset`, None when it is before the first."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drops the epochs that start at or after `end_offset`: the log was cut there."""
        if not self._starts or self._starts[-1] < end_offset:
            return
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        self.cut()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops the epochs that end at or before `start_offset`. The epoch that covers it now starts there."""
        at = bisect_right(self._starts, start_offset)
        if at == 0 or (at == 1 and self._starts[0] == start_offset):
            return
        del self._epochs[: at - 1]
        del self._starts[: at - 1]
        self._starts[0] = start_offset
        self.cut()

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.cut()

    def cut(self) -> None:
        """Marks the checkpoint file as out of date; it may have epochs that are not here."""
        self.is_changed = True
        self.on_cut()


def _ignore() -> None:
    """Nobody listens."""
