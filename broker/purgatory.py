"""Where operations wait for something to happen to one of their keys (REP-5).

A handler parks an operation and returns; it never waits (BUG-26). What happens to a key (an append, a move of the high
watermark, a leadership change) checks the operations that watch it. Each is completed exactly once: by a check, by its
time-out, or by `complete_now`; then it is gone from all its keys and its timer is cancelled.

However many wait, one turn of the loop asks AT_ONCE of them, and for no longer than SLICE_S: to ask a fetch may be to read megabytes.
The others are asked in the next ones. And they are not many
without end: who comes when there are too many is answered at once, as at its time-out, and nobody waits longer than
WAIT_MAX_S, whatever its client asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)

AT_ONCE = 256
"""Operations: to ask so many takes some milliseconds, and to answer all of them some more."""
SLICE_S = 0.005
WAIT_MAX_S = 300.0
KEYS_MAX = 200_000
"""Keys that all operations of a purgatory watch together; each takes half a kilobyte in its operation."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that waiting needs."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object: ...


class Verdict(Enum):
    """What an operation says when it is checked."""

    DONE = "it can be answered now"
    WAIT = "not yet"
    WAIT_AND_SO_DO_LATER = "not yet, and those that began to watch the key after it need not be asked"


class DelayedOperation(ABC, Generic[Key]):
    """An answer that is still to come."""

    __slots__ = ("_keys", "_purgatory", "_timer", "is_completed")

    def __init__(self) -> None:
        self.is_completed = False
        self._keys: dict[Key, None] = {}
        self._purgatory: Purgatory[Key] | None = None
        self._timer: TimerHandle | None = None

    @abstractmethod
    def try_complete(self, keys: Collection[Key]) -> Verdict:
        """Looks again at what `keys` (all that were touched) mean for it. Changes nothing outside of itself."""

    @abstractmethod
    def on_complete(self, *, expired: bool) -> None:
        """Answers; called exactly once."""

    def complete_now(self) -> bool:
        """Completes it in any case, with what there is. False when it was completed before."""
        return self._finish(expired=False)

    def _finish(self, *, expired: bool) -> bool:
        if self.is_completed:
            return False
        self.is_completed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._purgatory is not None:
            self._purgatory._forget(self)
            self._purgatory = None
        self.on_complete(expired=expired)
        return True


class Purgatory(Generic[Key]):
    """The operations that wait, by the keys they watch."""

    def __init__(
        self, timers: Timers, monotonic: Callable[[], float] | None = None, *, keys_max: int = KEYS_MAX
    ) -> None:
        """`monotonic` is the machine's clock; without it only the number that is asked in a turn is bounded."""
        self._timers = timers
        self._monotonic = monotonic
        self._keys_max = keys_max
        self._watchers: dict[Key, dict[DelayedOperation[Key], None]] = {}
        self._count = 0
        self._watched = 0
        self._left = AT_ONCE
        """How many may still be asked in this turn; counts only while there are more than AT_ONCE of them."""
        self._spent_s = 0.0
        """How long it took to ask and answer, since there was a turn's end last."""
        self._is_next_turn_scheduled = False
        self._keys_due: dict[Key, None] = {}
        self._operations_due: dict[DelayedOperation[Key], dict[Key, None]] = {}

    def __len__(self) -> int:
        """Operations that wait now."""
        return self._count

    def watched_keys(self) -> int:
        return len(self._watchers)

    def try_complete_else_watch(self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float) -> bool:
        """Completes the operation if it can be, else parks it under `keys` for at most `timeout_s`. True: completed."""
        watched = tuple(dict.fromkeys(keys))
        if operation.try_complete(watched) is Verdict.DONE or not watched:
            return operation.complete_now()
        if timeout_s <= 0:
            return operation._finish(expired=True)
        return not self.watch(operation, watched, timeout_s)

    def watch(self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float) -> bool:
        """Parks an operation of which the caller just saw that it cannot be completed yet. False: there are too many."""
        operation._keys = dict.fromkeys(keys)
        if self._watched + len(operation._keys) > self._keys_max:
            operation._keys = {}
            operation._finish(expired=True)
            return False
        operation._purgatory = self
        for key in operation._keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._count += 1
        self._watched += len(operation._keys)
        operation._timer = self._timers.call_later(min(timeout_s, WAIT_MAX_S), self._expire, operation)
        return True

    def watch_also(self, operation: DelayedOperation[Key], key: Key) -> None:
        """One more key for an operation that is parked here."""
        if not operation.is_completed and key not in operation._keys:
            operation._keys[key] = None
            self._watched += 1
            self._watchers.setdefault(key, {})[operation] = None

    def check(self, key: Key) -> int:
        """Asks those that watch `key`, the longest waiting first. Returns how many were completed, of very many the first ones."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if operation.is_completed:
                continue
            if not self._may_ask():
                self._keys_due[key] = None
                break
            verdict = self._ask(operation, (key,))
            if verdict is Verdict.DONE:
                completed += 1
            elif verdict is Verdict.WAIT_AND_SO_DO_LATER:
                break
        return completed

    def _ask(self, operation: DelayedOperation[Key], keys: tuple[Key, ...]) -> Verdict:
        began = self._monotonic() if self._monotonic is not None else 0.0
        self._left -= 1
        verdict = operation.try_complete(keys)
        if verdict is Verdict.DONE:
            operation.complete_now()
        if self._monotonic is not None:
            self._spent_s += self._monotonic() - began
        return verdict

    def check_all(self, keys: Iterable[Key]) -> int:
        """As `check` for many keys, but each operation is asked once, with all of its keys that were touched."""
        touched = self._operations_due
        for key in keys:
            for operation in self._watchers.get(key, ()):
                touched.setdefault(operation, {})[key] = None
        return self._ask_those_due()

    def _ask_those_due(self) -> int:
        completed = 0
        due = self._operations_due
        while due:
            if not self._may_ask():
                break
            operation = next(iter(due))
            its_keys = tuple(due.pop(operation))
            if not operation.is_completed:
                completed += self._ask(operation, its_keys) is Verdict.DONE
        return completed

    def _may_ask(self) -> bool:
        """In this turn. Else the next one is seen to."""
        if self._spent_s < SLICE_S and self._count <= AT_ONCE:
            return True
        if not self._is_next_turn_scheduled:
            self._is_next_turn_scheduled = True
            self._left = AT_ONCE
            self._timers.call_soon(self._next_turn)
        return self._left > 0 and self._spent_s < SLICE_S

    def _next_turn(self) -> None:
        self._is_next_turn_scheduled = False
        self._left, self._spent_s = AT_ONCE, 0.0
        keys, self._keys_due = self._keys_due, {}
        for key in keys:
            self.check(key)
        self._ask_those_due()

    def watched(self) -> tuple[Key, ...]:
        return tuple(self._watchers)

    def _expire(self, operation: DelayedOperation[Key]) -> None:
        operation._finish(expired=True)

    def _forget(self, operation: DelayedOperation[Key]) -> None:
        self._count -= 1
        self._watched -= len(operation._keys)
        self._operations_due.pop(operation, None)
        for key in operation._keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
