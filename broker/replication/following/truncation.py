"""Where a follower cuts its log so that it agrees with the leader's (REP-6, INV-19). Pure.

Every record carries the leader epoch in which it was appended, and no two leaders share an epoch (INV-7). So two logs
that both have records of epoch e agree up to the lower end of e in either. The steps:

1. The follower asks the leader: where does my last epoch end in your log?
2. The leader answers with the largest epoch it has that is not above, and that epoch's end offset.
3. The same epoch: cut at the lower of the two ends; done.
4. A lower epoch, that the follower has too: the same; done.
5. A lower epoch that the follower does not have: cut what is above the follower's end of the epochs below, ask again.

Worked example: follower has epochs 1@0, 3@50 and LEO 80; the leader has 1@0, 2@40 and LEO 90. Asked for 3, the leader
answers (2, 90). The follower has no 2; its epoch 1 ends at 50: cut to 50, ask for 1. Answer (1, 40): cut to 40, done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record; both -1: the log knows no such epoch."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class Truncation(NamedTuple):
    """Cut the log to `offset` (its own end: cut nothing); `is_complete` False: then ask the leader again."""

    offset: int
    is_complete: bool


def decide(
    leader: EpochEnd,
    *,
    log_end_offset: int,
    high_watermark: int,
    local_end_of: Callable[[int], EpochEnd],
) -> Truncation:
    """What to do with the leader's answer. `local_end_of(epoch)` is the follower's own answer to the same question.

    `high_watermark` is the fallback for a leader that knows nothing at or below the asked epoch: its log starts
    later, or it has no epochs at all.
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
    """The leader's check of a fetch that continues records of `asked_epoch` at `fetch_offset`: do they agree so far?

    `leader` is the leader's end of that epoch. To be asked before the high watermark is touched (BUG-19).
    """
    return leader.epoch < asked_epoch or leader.end_offset < fetch_offset
