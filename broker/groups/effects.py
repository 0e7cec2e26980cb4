"""Carries out the effects of groups: answers to waiting requests, and records for the log."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from broker.groups.group.messages import AnswerJoin, AnswerSync, Effect, JoinAnswer, Store, SyncAnswer
from broker.groups.held_groups import AnyGroup, HeldGroup
from broker.groups.offsets_topic.writer import OffsetsWriter
from broker.purgatory import Timers
from protocol.errors import ErrorCode

EFFECTS_AT_ONCE = 100
"""Maximum number of effects in one turn of the loop. An answer takes about 20 us."""


class GroupEffects:
    """Keeps the waiting requests by their tickets. Calls `stored(held, group, number, error)` with the outcome of each record."""

    def __init__(
        self, writer: OffsetsWriter, stored: Callable[[HeldGroup, AnyGroup, int, ErrorCode], None], timers: Timers
    ) -> None:
        self._writer = writer
        self._stored = stored
        self._timers = timers
        self._tickets = itertools.count()
        self._joins: dict[int, Callable[[JoinAnswer], None]] = {}
        self._syncs: dict[int, Callable[[SyncAnswer], None]] = {}
        self._queue: deque[tuple[HeldGroup, AnyGroup, Effect]] = deque()
        self._is_running = False

    @property
    def waiting(self) -> int:
        """JoinGroups and SyncGroups that are not answered yet (INV-27)."""
        return len(self._joins) + len(self._syncs)

    def join_waits(self, respond: Callable[[JoinAnswer], None]) -> int:
        """Returns the ticket under which the request will be answered."""
        ticket = next(self._tickets)
        self._joins[ticket] = respond
        return ticket

    def sync_waits(self, respond: Callable[[SyncAnswer], None]) -> int:
        ticket = next(self._tickets)
        self._syncs[ticket] = respond
        return ticket

    def run(self, held: HeldGroup, effects: Iterable[Effect]) -> None:
        """Runs the effects in order, after all earlier effects. An effect may cause others at once, if this broker is the only replica.

        Other requests are served while the members of a large group are answered.
        """
        group = held.group
        self._queue.extend((held, group, effect) for effect in effects)
        if not self._is_running:
            self._go_on()

    def _go_on(self) -> None:
        self._is_running = True
        try:
            for _ in range(EFFECTS_AT_ONCE):
                if not self._queue:
                    break
                self._do(*self._queue.popleft())
        finally:
            self._is_running = bool(self._queue)
            if self._queue:
                self._timers.call_soon(self._go_on)

    def _do(self, held: HeldGroup, group: AnyGroup, effect: Effect) -> None:
        match effect:
            case AnswerJoin(ticket, joined):
                self._joins.pop(ticket)(joined)
            case AnswerSync(ticket, assigned):
                self._syncs.pop(ticket)(assigned)
            case Store(number, metadata):
                # Not after the group's tombstone: a load would find the group again. That of a group that has become one of the other
                # kind is in the log, too.
                if held.is_held and held.group is group and not held.is_being_deleted:
                    self._writer.store_group(
                        held.owner.number,
                        held.group_id,
                        metadata,
                        lambda error: self._stored(held, group, number, error),
                    )
