"""Transactions that have ended in a log, and whose markers may not be replicated yet (LOG-7). Pure.

After a restart these are all transactions since the last snapshot, perhaps a million, because the log does not know the high watermark.
They are therefore kept in 16 bytes each, and forgotten all together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left


class Unreplicated:
    """The first offset and the offset of the marker of each transaction, in the order of the markers.

    A transaction that started later and ended earlier than another one is left out: the first offset of all is never its own. So first
    offsets rise, too.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: array[int] | None = None) -> None:
        # One array: each change of it is one step for a thread that copies it.
        self._pairs = array("q") if pairs is None else pairs

    def __len__(self) -> int:
        return len(self._pairs) // 2

    def add(self, first_offset: int, marker_offset: int) -> None:
        """The transaction's marker, the latest, is in the log."""
        pairs = self._pairs
        if pairs and pairs[-2] >= first_offset:
            del pairs[2 * bisect_left(range(len(pairs) // 2), first_offset, key=lambda at: pairs[2 * at]) :]
        pairs.extend((first_offset, marker_offset))

    def forget(self, high_watermark: int) -> None:
        """The markers below the high watermark are replicated."""
        pairs = self._pairs
        if pairs and pairs[1] < high_watermark:
            del pairs[: 2 * _replicated(pairs, high_watermark)]

    @property
    def first(self) -> int | None:
        """The first offset of all, None without a transaction."""
        return self._pairs[0] if self._pairs else None

    def first_from(self, high_watermark: int) -> int | None:
        """`first` after a `forget`. For another thread: changes nothing."""
        pairs = self._pairs[:]
        at = _replicated(pairs, high_watermark)
        return pairs[2 * at] if 2 * at < len(pairs) else None

    def copy(self) -> Unreplicated:
        return Unreplicated(self._pairs[:])

    def clear(self) -> None:
        del self._pairs[:]


def _replicated(pairs: array[int], high_watermark: int) -> int:
    """How many markers are below the high watermark."""
    return bisect_left(range(len(pairs) // 2), high_watermark, key=lambda at: pairs[2 * at + 1])
