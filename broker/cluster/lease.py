"""Whether this process may still act for its ZooKeeper session after it was stopped (FLT-6).

A leader whose process was stopped (SIGSTOP, a frozen container) for longer than its session has been replaced when it continues. It
does not know this until ZooKeeper reports it, and its first I/O callbacks may run before any timer. Every piece of work therefore
asks the lease, and the lease compares the clock with its last tick:

* the clock counts the time for which the machine is suspended (`Clock.since_boot`): the session may end meanwhile, as after a SIGSTOP;
* ticks come every 100 ms while the loop runs; a gap above the limit means that the process was stopped. The limit is below the
  time in which a session expires: the session's last heartbeat is at most a third of its timeout old.
* after such a gap the lease is *suspect*, until a round trip to ZooKeeper that started after the gap succeeds in the same session;
* when the session has ended, this broker gives up all leaderships (`step_down_all`), which calls `reset`.

An unreachable ZooKeeper does not make the lease suspect (CTL-14): without a gap, the client library reports the loss of the session
in time.

Answers from memory alone, such as a group's offsets, need more: a leader that is cut off does not know about a new leader. The lease
therefore makes a round trip regularly. `is_proven` is true for half a session timeout after the start of
the last one: within that time no other leader can have been elected because of an expired session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from broker.process.clock import Clock
from protocol.zk.session import ZkError

log = logging.getLogger(__name__)

TICK_S = 0.1
LIMIT_S_MAX = 1.0


class SessionHeartbeat(Protocol):
    """The part of the ZooKeeper session that the lease needs."""

    @property
    def session_id(self) -> int: ...

    async def heartbeat(self) -> object: ...


class LeadershipLease:
    """See the module. `is_suspect` must be fast: it is called once per request."""

    def __init__(self, clock: Clock, session_timeout_ms: int) -> None:
        self._since_boot = clock.since_boot
        self._limit_s = min(session_timeout_ms / 2000, LIMIT_S_MAX)
        self._proof_holds_s = session_timeout_ms / 2000
        self._proven_at = clock.since_boot()
        self._last_tick = clock.since_boot()
        self._suspect = False
        self._stalls = 0
        self._session_id: int | None = None
        self._on_stall: list[Callable[[float], None]] = []
        self._on_trusted: list[Callable[[], None]] = []

    def on_stall(self, callback: Callable[[float], None]) -> None:
        """Calls `callback(seconds)` when a gap is seen."""
        self._on_stall.append(callback)

    def on_trusted(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` when the lease is no longer suspect."""
        self._on_trusted.append(callback)

    def is_suspect(self) -> bool:
        """True if nothing may be acknowledged now."""
        if self._since_boot() - self._last_tick > self._limit_s:
            self._note_stall()
        return self._suspect

    def is_proven(self) -> bool:
        """True if a recent round trip to ZooKeeper has shown that the session is alive."""
        return self._since_boot() - self._proven_at <= self._proof_holds_s

    def prove(self, began: float) -> None:
        """Records that the session was alive at `began` or later, in seconds since boot."""
        self._proven_at = max(self._proven_at, began)

    def tick(self, session_id: int | None = None) -> None:
        """Called while the loop runs. Unless the lease is suspect, remembers the session in which a later confirmation must be made."""
        if not self.is_suspect():
            self._session_id = session_id
        self._last_tick = self._since_boot()

    def reset(self) -> None:
        """Ends the doubt, because every leadership was given up. The next tick sets the new session."""
        self._session_id = None
        self._trust()

    def forget_session(self) -> None:
        """Nothing has been led so far: a confirmation in any session ends a doubt."""
        self._session_id = None

    async def confirm(self, session: SessionHeartbeat) -> bool:
        """Tries once to end the doubt, with one round trip. Returns False if the lease is still suspect."""
        stalls, began = self._stalls, self._since_boot()
        await session.heartbeat()
        # An answer from before another gap, or from another session, proves nothing about now.
        # Without a known session every session counts: all leaderships were given up before it (`reset`).
        is_same_session = session.session_id == self._session_id or not self._session_id
        if self.is_suspect() and stalls == self._stalls and is_same_session:
            self._trust()
        if is_same_session and stalls == self._stalls:
            self.prove(began)
        return not self._suspect

    async def run(self, session: SessionHeartbeat) -> None:
        """Ticks until cancelled, and confirms regularly, at once when suspect. The time before this call does not count as a gap: this
        broker leads nothing yet."""
        self._last_tick = asked_at = self._since_boot()
        confirming: asyncio.Task[None] | None = None
        try:
            while True:
                self.tick(session.session_id)
                is_due = self._suspect or self._last_tick - asked_at >= self._proof_holds_s / 3
                if is_due and (confirming is None or confirming.done()):
                    asked_at = self._last_tick
                    confirming = asyncio.create_task(self._confirm_quietly(session))
                await asyncio.sleep(TICK_S)
        finally:
            if confirming is not None:
                confirming.cancel()

    async def _confirm_quietly(self, session: SessionHeartbeat) -> None:
        try:
            await self.confirm(session)
        except ZkError as error:
            if not self._suspect:
                log.debug("ZooKeeper does not confirm the session: %s", error)
                return
            log.warning("leaderships stay suspended: ZooKeeper does not confirm the session (%s)", error)

    def _note_stall(self) -> None:
        now = self._since_boot()
        gap_s, self._last_tick = now - self._last_tick, now
        self._stalls += 1
        self._suspect = True
        log.warning(
            "this process was stopped for %.1f s: nothing is acknowledged until ZooKeeper confirms the session", gap_s
        )
        for callback in self._on_stall:
            callback(gap_s)

    def _trust(self) -> None:
        was_suspect, self._suspect = self._suspect, False
        if was_suspect:
            for callback in self._on_trusted:
                callback()
