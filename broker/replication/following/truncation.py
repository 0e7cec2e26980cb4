"""Where a follower cuts its log so that it agrees with the leader's (REP-6, INV-19). Pure.

Every record carries the leader epoch in which it was appended, and no two leaders share an epoch (INV-7). Two logs that
both have records of epoch e therefore agree up to the lower of their two ends of e. The steps:

1. The follower asks the leader: where does my last epoch end in your log?
2. The leader answers with its largest epoch that is not above the asked one, and with that epoch's end offset.
3. If it is the same epoch, the follower cuts at the lower of the two ends. The logs agree.
4. If it is a lower epoch that the follower has too, the follower does the same.
5. If it is a lower epoch that the follower does not have, the follower cuts at its own end of the epochs below, and asks
   again for the epoch that is its last epoch now. If it has no epoch below, it cuts at the leader's end, and the logs agree.

Worked example: the follower has epochs 1@0, 3@50 and log end offset 80. The leader has 1@0, 2@40 and log end offset 90.
Asked for epoch 3, the leader answers (2, 90). The follower has no epoch 2, and its epoch 1 ends at 50: it cuts to 50 and asks
for epoch 1. The leader answers (1, 40): the follower cuts to 40. The logs agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record. Both are -1 if the log has no such epoch."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class Truncation(NamedTuple):
    """Where to cut the log; at its end: nothing is cut. `is_complete`: the logs agree after the cut. Else the leader is asked again."""

    offset: int
    is_complete: bool


def decide(
    leader: EpochEnd,
    *,
    log_end_offset: int,
    high_watermark: int,
    local_end_of: Callable[[int], EpochEnd],
) -> Truncation:
    """Where to cut, after the leader's answer. `local_end_of(epoch)` is the follower's own answer to the same question.

    The log is cut at the high watermark if `leader` is UNDEFINED: the follower has no epoch to ask for, or the leader has no epoch
    at or below the asked epoch (its log starts later, or has no epochs).
    """
    if leader.end_offset == UNDEFINED_OFFSET:
        return Truncation(min(high_watermark, log_end_offset), True)
    if leader.epoch == UNDEFINED_EPOCH:
        return Truncation(min(leader.end_offset, log_end_offset), True)
    local = local_end_of(leader.epoch)
    if local.end_offset == UNDEFINED_OFFSET:
        return Truncation(min(leader.end_offset, log_end_offset), True)
    if local.epoch != leader.epoch:
        return Truncation(min(local.end_offset, log_end_offset), False)
    return Truncation(min(local.end_offset, leader.end_offset, log_end_offset), True)


def has_diverged(asked_epoch: int, fetch_offset: int, leader: EpochEnd) -> bool:
    """The leader's check: does the log of a follower that ends at `fetch_offset`, in epoch `asked_epoch`, differ from its own?

    `leader` is the leader's end of that epoch. The check comes before the fetch may move the high watermark (INV-12).
    """
    return leader.epoch < asked_epoch or leader.end_offset < fetch_offset
