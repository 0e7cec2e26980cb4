"""Where operations wait for something to happen to one of their keys (REP-5).

A handler parks an operation and returns; it never waits (BUG-26). What happens to a key (an append, a move of the high
watermark, a leadership change) checks the operations that watch it. Each is completed exactly once: by a check, by its
time-out, or by `complete_now`; then it is gone from all its keys and its timer is cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


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

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._watchers: dict[Key, dict[DelayedOperation[Key], None]] = {}
        self._count = 0

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
        self.watch(operation, watched, timeout_s)
        return False

    def watch(self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float) -> None:
        """Parks an operation of which the caller just saw that it cannot be completed yet."""
        operation._keys = dict.fromkeys(keys)
        operation._purgatory = self
        for key in operation._keys:
            self._watchers.setdefault(key, {})[operation] = None
        self._count += 1
        operation._timer = self._timers.call_later(timeout_s, self._expire, operation)

    def watch_also(self, operation: DelayedOperation[Key], key: Key) -> None:
        """One more key for an operation that is parked here."""
        if not operation.is_completed and key not in operation._keys:
            operation._keys[key] = None
            self._watchers.setdefault(key, {})[operation] = None

    def check(self, key: Key) -> int:
        """Asks those that watch `key`, the longest waiting first. Returns how many were completed."""
        completed = 0
        for operation in list(self._watchers.get(key, ())):
            if operation.is_completed:
                continue
            verdict = operation.try_complete((key,))
            if verdict is Verdict.DONE:
                completed += operation.complete_now()
            elif verdict is Verdict.WAIT_AND_SO_DO_LATER:
                break
        return completed

    def check_all(self, keys: Iterable[Key]) -> int:
        """As `check` for many keys, but each operation is asked once, with all of its keys that were touched."""
        touched: dict[DelayedOperation[Key], list[Key]] = {}
        for key in keys:
            for operation in self._watchers.get(key, ()):
                touched.setdefault(operation, []).append(key)
        completed = 0
        for operation, its_keys in touched.items():
            if not operation.is_completed and operation.try_complete(its_keys) is Verdict.DONE:
                completed += operation.complete_now()
        return completed

    def watched(self) -> tuple[Key, ...]:
        return tuple(self._watchers)

    def _expire(self, operation: DelayedOperation[Key]) -> None:
        operation._finish(expired=True)

    def _forget(self, operation: DelayedOperation[Key]) -> None:
        self._count -= 1
        for key in operation._keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
