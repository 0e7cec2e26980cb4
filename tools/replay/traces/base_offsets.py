"""How many records the batches of one partition had, from the base offsets that producers were told. Pure.

A batch has the records from its base offset to the next one. Some batches have no base offset: those with acks 0, and the markers
that end transactions, of one record each. The times at which batches were appended say between which two base offsets they are. They
share the records there with the batch at the first of the two, in proportion to their sizes. Batches with the same base
offset are one batch that was sent again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from protocol.kafka.record_batch import HEADER_SIZE

UNKNOWN = -1
OUT_OF_ORDER = 64
"""Batches that may come out of the order of their offsets."""
WAITING_MAX = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """`row` is the caller's; `size` is in bytes, or UNKNOWN; `appended` is a time in any unit."""

    row: Any
    size: int
    appended: int
    is_marker: bool = False


class _Waiting(NamedTuple):
    base_offset: int
    batch: Batch


@dataclass(slots=True)
class PartitionBatches:
    """The batches that wait for the next base offset. A few hundred at most."""

    _waiting: list[_Waiting] = field(default_factory=list)
    _settled_up_to: int = UNKNOWN

    def add(self, batch: Batch, base_offset: int) -> list[tuple[Batch, int]]:
        """Adds a batch; UNKNOWN if it has no base offset. Returns the batches whose number of records is decided now."""
        settled: list[tuple[Batch, int]] = []
        if base_offset != UNKNOWN and base_offset < self._settled_up_to:  # the topic was deleted and created again
            settled += self.finish(UNKNOWN)
        self._waiting.append(_Waiting(base_offset, batch))
        if len(self._waiting) >= WAITING_MAX:
            settled += self.finish(UNKNOWN)
        elif len(self._waiting) >= 2 * OUT_OF_ORDER and len(self._waiting) % OUT_OF_ORDER == 0:
            settled += self._settle_first()
        return settled

    def finish(self, end: int) -> list[tuple[Batch, int]]:
        """Decides all batches. The last one ends at the offset `end`; UNKNOWN or an offset too low leave it UNKNOWN."""
        settled = list(_shared(_gaps(self._waiting), end))
        self._waiting, self._settled_up_to = [], UNKNOWN
        return settled

    def _settle_first(self) -> list[tuple[Batch, int]]:
        """Decides the batches before the highest base offset but `OUT_OF_ORDER`."""
        gaps = _gaps(self._waiting)
        offsets = sorted(base_offset for base_offset, _ in self._waiting if base_offset != UNKNOWN)
        if len(offsets) <= OUT_OF_ORDER:
            return []
        bound = offsets[-OUT_OF_ORDER]
        self._waiting = [waiting for offset, members in gaps.items() if offset >= bound for waiting in members]
        self._settled_up_to = bound
        return list(_shared({offset: members for offset, members in gaps.items() if offset < bound}, bound))


def _gaps(waiting: Sequence[_Waiting]) -> dict[int, list[_Waiting]]:
    """The batches from one base offset to the next, by base offset, in order. Those before the first base offset are at UNKNOWN."""
    with_offset = sorted((one for one in waiting if one.base_offset != UNKNOWN), key=itemgetter(0))
    gaps: dict[int, list[_Waiting]] = {UNKNOWN: []}
    for one in with_offset:
        gaps.setdefault(one.base_offset, []).append(one)
    times = list(accumulate((one.batch.appended for one in with_offset), max))
    for one in waiting:
        if one.base_offset == UNKNOWN:
            after = bisect_right(times, one.batch.appended)
            gaps[with_offset[after - 1].base_offset if after else UNKNOWN].append(one)
    return gaps


def _shared(gaps: Mapping[int, Sequence[_Waiting]], end: int) -> Iterator[tuple[Batch, int]]:
    """The batches with their records. `end`: the offset after the last of them, if it is known."""
    for (offset, members), until in zip(gaps.items(), [*list(gaps)[1:], end], strict=True):
        markers = [batch for _, batch in members if batch.is_marker]
        told = [batch for base_offset, batch in members if base_offset != UNKNOWN]
        untold = [batch for base_offset, batch in members if base_offset == UNKNOWN and not batch.is_marker]
        records = until - offset - len(markers) if offset != UNKNOWN else UNKNOWN
        shares = _split(records, [*told[:1], *untold])
        yield from ((batch, 1) for batch in markers)
        yield from ((batch, shares[0]) for batch in told)
        yield from zip(untold, shares[len(told[:1]) :], strict=True)


def _split(records: int, batches: Sequence[Batch]) -> list[int]:
    """`records` in whole parts in proportion to the batches' sizes, each at least 1; UNKNOWN for all if there are too few."""
    if records < max(1, len(batches)):
        return [UNKNOWN] * len(batches)
    if any(batch.size == UNKNOWN for batch in batches):
        weights = [1] * len(batches)
    else:
        weights = [max(1, batch.size - HEADER_SIZE) for batch in batches]
    total, spare = sum(weights), records - len(batches)
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    return [1 + spare * after // total - spare * before // total for before, after in pairwise(sums)]
