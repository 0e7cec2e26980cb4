"""The limit of the memory that a coordinator's groups or transactional ids take together. What exists already continues, and can end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from broker.process.rare_lines import RareLine

log = logging.getLogger(__name__)

LOGGED_EVERY_S = 60.0


class Held(Protocol):
    """What a coordinator holds: how many, and their approximate bytes."""

    bytes: int

    def __len__(self) -> int: ...


class MemoryLimit:
    """`setting` is the name of the limit, `limit` its value in bytes. `held_name` and `refused` are words for the log."""

    def __init__(
        self, setting: str, limit: int, held: Held, held_name: str, refused: str, monotonic: Callable[[], float]
    ) -> None:
        self._setting = setting
        self._limit = limit
        self._held = held
        self._held_name = held_name
        self._refused = refused
        self._refusals = RareLine(LOGGED_EVERY_S, monotonic)

    def has_room_for(self, growth: int) -> bool:
        """Whether a request may add so many bytes. A request that needs no more memory always may."""
        if growth <= 0 or self._held.bytes + growth <= self._limit:
            return True
        if self._refusals.happened() is not None:
            log.warning(
                "%d %s take %d bytes: %s are refused, %s is %d",
                len(self._held),
                self._held_name,
                self._held.bytes,
                self._refused,
                self._setting,
                self._limit,
            )
        return False
