"""How many connections the broker and each listener accept in each second: `max.connection.creation.rate` (KIP-612).

As `ConnectionQuotas` in Kafka: a connection above a rate waits until the rate is within it, for a sample at most, and those behind it wait,
too. It counts although it waits. Each listener has the broker's rate, too, unless it has its own. The brokers' own listener counts only for
itself, so clients cannot use up its connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from broker.quotas.rates import SampledRate, Window, throttle_time
from broker.settings.config import (
    LIMITS_OF_LISTENERS,
    MAX_CONNECTION_CREATION_RATE,
    BrokerConfig,
    key_of_listener,
    limit_of_listener,
)

log = logging.getLogger(__name__)


class CreationRates:
    """The rates of a broker and its listeners, and what they have accepted."""

    def __init__(
        self,
        config: BrokerConfig,
        monotonic: Callable[[], float],
        listeners: Collection[str],
        of_brokers: str | None = None,
    ) -> None:
        """`listeners`: their names. `of_brokers`: that of the listener that only brokers use, if there is one."""
        known = {key_of_listener(name, limit) for name in listeners for limit in LIMITS_OF_LISTENERS}
        for key in config.limits_of_listeners:
            if key not in known:
                log.warning("%s has no effect: listeners has none of that name for the Kafka protocol", key)
        self._window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._config = config
        self._monotonic = monotonic
        self._of_brokers = of_brokers
        self._accepted = SampledRate(self._window)
        self._accepted_at: dict[str, SampledRate] = {}

    def changed(self, config: BrokerConfig) -> None:
        """The rates count for the next connection. One that waits has its time already."""
        self._config = config

    def wait_ms(self, listener: str) -> int:
        """Counts a new connection of the listener. Above 0: it waits for so many milliseconds."""
        now = int(self._monotonic() * 1000)
        of_listener = self._accepted_at.get(listener)
        if of_listener is None:
            of_listener = self._accepted_at[listener] = SampledRate(self._window)
        bound = limit_of_listener(self._config, listener, MAX_CONNECTION_CREATION_RATE)
        wait_ms = self._record(of_listener, bound, now)
        if listener != self._of_brokers:
            wait_ms = max(wait_ms, self._record(self._accepted, self._config.max_connection_creation_rate, now))
        return wait_ms

    def _record(self, accepted: SampledRate, bound: int, now: int) -> int:
        accepted.record(1, now)
        return throttle_time(accepted.wait_ms(bound, now), self._window.size_ms)

    def take_back(self, listener: str) -> None:
        """The last connection of the listener is refused for its address, and does not count."""
        now = int(self._monotonic() * 1000)
        if (of_listener := self._accepted_at.get(listener)) is not None:
            of_listener.record(-1, now)
        if listener != self._of_brokers:
            self._accepted.record(-1, now)
