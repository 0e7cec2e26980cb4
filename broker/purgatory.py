"""Operations wait here for an event on one of their keys (REP-5; Kafka: DelayedOperationPurgatory).

A handler parks an operation and returns; it never waits (BUG-26). An event on a key (an append, a move of the high watermark,
a leadership change) checks the operations that watch the key. Each operation is completed exactly once: by a check, by its
time-out, or by `complete_now`. It is then removed from all its keys, and its timer is cancelled.

One turn of the loop checks at most AT_ONCE operations, for at most SLICE_S, because the check of a fetch may read
megabytes. Later turns check the others. The number of watched keys is bounded: an operation that would exceed KEYS_MAX is
answered at once, as at its time-out. No operation waits longer than WAIT_MAX_S, whatever its client asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)

AT_ONCE: Final = 256
"""Maximum number of operations checked in one turn: a few milliseconds for the checks, and a few more for the answers."""
SLICE_S: Final = 0.005
WAIT_MAX_S: Final = 300.0
KEYS_MAX: Final = 200_000
"""Maximum number of keys that all operations of one purgatory watch together. Each key takes half a kilobyte of memory."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that the purgatory needs."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object: ...


class CheckResult(Enum):
    """The answer of an operation to a check."""

    DONE = "it can be answered now"
    WAIT = "not yet"
    WAIT_LIKE_ALL_LATER = "not yet, and operations that started to watch the key later need not be checked"


class DelayedOperation(ABC, Generic[Key]):
    """An operation that is answered later."""

    __slots__ = ("_keys", "_purgatory", "_timer", "is_completed")

    def __init__(self) -> None:
        self.is_completed = False
        self._keys: dict[Key, None] = {}
        self._purgatory: Purgatory[Key] | None = None
        self._timer: TimerHandle | None = None

    @abstractmethod
    def try_complete(self, keys: Collection[Key]) -> CheckResult:
        """Checks the operation again. `keys` are those of its keys that had an event. Changes nothing but the operation."""

    @abstractmethod
    def on_complete(self, *, expired: bool) -> None:
        """Answers; called exactly once."""

    def complete_now(self) -> bool:
        """Completes the operation unconditionally, with the results so far. False if it was completed before."""
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
        """`monotonic` is the machine's clock. Without it only the number of checks in a turn is bounded, not their time."""
        self._timers = timers
        self._monotonic = monotonic
        self._keys_max = keys_max
        self._watchers: dict[Key, dict[DelayedOperation[Key], None]] = {}
        self._count = 0
        self._watched = 0
        self._left = AT_ONCE
        """Checks left in this turn. It counts only while more than AT_ONCE operations wait."""
        self._spent_s = 0.0
        """Seconds spent in checks and answers since `_next_turn` last ran."""
        self._is_next_turn_scheduled = False
        self._operations_due: dict[DelayedOperation[Key], dict[Key, None]] = {}
        self.expired = 0
        """Operations that were ended by their time-out, since the start."""

    def __len__(self) -> int:
        """Operations that wait now."""
        return self._count

    @property
    def watched(self) -> int:
        """The keys of all waiting operations, each key as often as it is watched."""
        return self._watched

    def is_watched(self, key: Key) -> bool:
        """Whether any waiting operation watches the key."""
        return key in self._watchers

    def watching(self, key: Key) -> tuple[DelayedOperation[Key], ...]:
        """The operations that watch the key, oldest first."""
        return tuple(self._watchers.get(key, ()))

    def watched_key_count(self) -> int:
        return len(self._watchers)

    def try_complete_else_watch(self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float) -> bool:
        """Completes the operation if that is possible, else parks it under `keys` for at most `timeout_s`. True: completed."""
        watched = tuple(dict.fromkeys(keys))
        if operation.try_complete(watched) is CheckResult.DONE or not watched:
            return operation.complete_now()
        if timeout_s <= 0:
            return operation._finish(expired=True)
        return not self.watch(operation, watched, timeout_s)

    def watch(self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float) -> bool:
        """Parks an operation that the caller has just found incomplete. False: there are too many keys, and it is answered now."""
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
        """Adds a key to an operation that is parked here."""
        if not operation.is_completed and key not in operation._keys:
            operation._keys[key] = None
            self._watched += 1
            self._watchers.setdefault(key, {})[operation] = None

    def check(self, key: Key) -> int:
        """Checks the operations that watch `key`, oldest first. Returns how many were completed in this turn."""
        completed = 0
        operations = list(self._watchers.get(key, ()))
        for at, operation in enumerate(operations):
            if operation.is_completed:
                continue
            if not self._may_check():
                # Notes the operations, not the key: a later check of the key would start with the oldest again.
                for later in operations[at:]:
                    if not later.is_completed:
                        self._operations_due.setdefault(later, {})[key] = None
                break
            result = self._check_one(operation, (key,))
            if result is CheckResult.DONE:
                completed += 1
            elif result is CheckResult.WAIT_LIKE_ALL_LATER:
                break
        return completed

    def _check_one(self, operation: DelayedOperation[Key], keys: tuple[Key, ...]) -> CheckResult:
        began = self._monotonic() if self._monotonic is not None else 0.0
        self._left -= 1
        result = operation.try_complete(keys)
        if result is CheckResult.DONE:
            operation.complete_now()
        if self._monotonic is not None:
            self._spent_s += self._monotonic() - began
        return result

    def check_all(self, keys: Iterable[Key]) -> int:
        """Like `check` for many keys, but each operation is checked once, with all of its keys among them."""
        touched = self._operations_due
        for key in keys:
            for operation in self._watchers.get(key, ()):
                touched.setdefault(operation, {})[key] = None
        return self._check_due()

    def _check_due(self) -> int:
        completed = 0
        due = self._operations_due
        while due:
            if not self._may_check():
                break
            operation = next(iter(due))
            its_keys = tuple(due.pop(operation))
            if not operation.is_completed:
                completed += self._check_one(operation, its_keys) is CheckResult.DONE
        return completed

    def _may_check(self) -> bool:
        """Whether another check may be made in this turn. If not, the next turn is scheduled."""
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
        self._check_due()

    def watched_keys(self) -> tuple[Key, ...]:
        return tuple(self._watchers)

    def _expire(self, operation: DelayedOperation[Key]) -> None:
        """An event before the time-out counts, even if its check was postponed to a later turn."""
        due = self._operations_due.pop(operation, None)
        if due is not None and operation.try_complete(tuple(due)) is CheckResult.DONE:
            operation.complete_now()
        else:
            self.expired += 1
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
