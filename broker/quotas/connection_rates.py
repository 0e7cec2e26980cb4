"""How many connections an address may open in each second: `connection_creation_rate` (KIP-612, `ConnectionQuotas` in Kafka).

A connection above the quota is accepted, not read from, and closed after the throttle time: until then its client waits. It does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from broker.quotas.by_host import ByHost, host_of
from broker.quotas.client_quotas import METERS_MAX
from broker.quotas.quota_configs import CONNECTION_CREATION_RATE, INT, read_quota
from broker.quotas.rates import SampledRate, Window, throttle_time
from broker.settings.config import INT_MAX, BrokerConfig
from protocol.topic_names import shown
from protocol.zk.entity_names import DEFAULT, desanitized

log = logging.getLogger(__name__)

LINGERING_MAX: Final = 1_000
"""Limit of the connections of a listener that wait to be closed. Further ones are closed at once."""
IPS: Final = "ips/"


class ConnectionRates:
    """The quotas of addresses, and how many connections each has opened."""

    def __init__(
        self, config: BrokerConfig, monotonic: Callable[[], float], look_ups: asyncio.Semaphore | None = None
    ) -> None:
        """`look_ups`: the turn of who looks for the addresses of a host."""
        self._window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._monotonic = monotonic
        self._of = ByHost(CONNECTION_CREATION_RATE, look_ups)
        self._default: float | None = None
        self._used: dict[str, SampledRate] = {}

    def throttle_ms(self, address: str) -> int:
        """Counts a new connection. Above 0: it is not counted, and to be closed after so many milliseconds."""
        bound = self._of.get(address, self._default)
        if bound is None or bound >= INT_MAX:
            return 0
        now = int(self._monotonic() * 1000)
        used = self._used.get(address)
        if used is None:
            if len(self._used) >= METERS_MAX:
                self._forget_some(now)
            used = self._used[address] = SampledRate(self._window)
        used.record(1, now)
        throttle_ms = throttle_time(used.wait_ms(bound, now), self._window.size_ms)
        if throttle_ms:
            used.record(-1, now)
        return throttle_ms

    def _forget_some(self, now: int) -> None:
        """Forgets who has opened nothing for a window; a quarter of all at least."""
        by_silence = sorted(self._used, key=lambda address: self._used[address].last_ms or 0)
        for number, address in enumerate(by_silence):
            if number >= METERS_MAX // 4 and now - (self._used[address].last_ms or 0) < self._window.age_ms:
                break
            del self._used[address]

    # -- what the settings say --------------------------------------------------------------------------------------------

    def changed(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """`configs`: an entity, such as `ips/10.0.0.7` or `ips/<default>`, -> its settings now."""
        for name, config in configs.items():
            if not name.startswith(IPS):
                continue
            node = name.removeprefix(IPS)
            text = config.get(CONNECTION_CREATION_RATE)
            try:
                bound = None if text is None else read_quota(INT, text)
                host = _host(node)
            except ValueError:
                log.warning("%s of %s cannot be read, the earlier value stays", CONNECTION_CREATION_RATE, shown(name))
                continue
            if node == DEFAULT:
                self._default = bound
            else:
                self._of.set(host, bound)

    def all_are(self, names: Collection[str]) -> None:
        """Other addresses have no quotas."""
        if f"{IPS}{DEFAULT}" not in names:
            self._default = None
        kept = set()
        for name in names:
            if name.startswith(IPS):
                with contextlib.suppress(ValueError):
                    kept.add(_host(name.removeprefix(IPS)))
        self._of.keep(kept)


def _host(node: str) -> str:
    """The name of a host, or the address in the form that connections have. Raises ValueError if it is no text."""
    return host_of(desanitized(node))
