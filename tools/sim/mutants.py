"""Rules of the brokers that can be taken out: each must be missed by some seed, or the simulation does not look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MUTANTS: Mapping[str, Callable[[], None]] = {}


def apply(name: str) -> None:
    """Takes that rule out of this process. Raises KeyError."""
    MUTANTS[name]()
