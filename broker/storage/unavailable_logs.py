"""Telling a person of logs that cannot be used although their disk is well: once, and not for each of ten thousand partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.storage.log_types import LogUnavailable

log = logging.getLogger(__name__)

TOLD_EVERY_S = 60.0


class UnavailableLogs:
    """One line for the first error of a kind, and then one a minute that counts the others."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._told: dict[int | None, tuple[float, int]] = {}

    def tell(self, error: LogUnavailable) -> None:
        number = error.error.errno
        now = self._monotonic()
        told_at, untold = self._told.get(number, (now - TOLD_EVERY_S, 0))
        if now - told_at < TOLD_EVERY_S:
            self._told[number] = told_at, untold + 1
            return
        self._told[number] = now, 0
        others = f" ({untold} times more in the last minute)" if untold else ""
        remedy = (
            "it is tried again" if error.is_passing else "its partition answers KAFKA_STORAGE_ERROR, all others go on"
        )
        log.error("a log cannot be used now, %s: %s%s", remedy, error, others)
