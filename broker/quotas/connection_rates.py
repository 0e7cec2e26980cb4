"""How many connections an address may open in each second: `connection_creation_rate` (KIP-612, `ConnectionQuotas` in Kafka).

A connection above the quota is accepted, not read from, and closed after the throttle time: until then its client waits. It does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Final

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

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self._window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._monotonic = monotonic
        self._of: dict[str, float] = {}
        """By address: its own quota, or the least of those of hosts that have it."""
        self._own: dict[str, float] = {}
        """By address, or the name of a host: the quota in the settings."""
        self._addresses: dict[str, tuple[str, ...]] = {}
        """Those of the names of hosts, as far as they are known."""
        self._names: dict[str, set[str]] = {}
        """By address: the hosts that have it."""
        self._default: float | None = None
        self._used: dict[str, SampledRate] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Those that look for the addresses of a host."""

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
                self._set(host, bound)

    def all_are(self, names: Collection[str]) -> None:
        """Other addresses have no quotas."""
        if f"{IPS}{DEFAULT}" not in names:
            self._default = None
        kept = set()
        for name in names:
            if name.startswith(IPS):
                with contextlib.suppress(ValueError):
                    kept.add(_host(name.removeprefix(IPS)))
        for host in [host for host in self._own if host not in kept]:
            self._set(host, None)

    def _set(self, host: str, bound: float | None) -> None:
        if (earlier := self._tasks.pop(host, None)) is not None:
            earlier.cancel()
        self._own.pop(host, None)
        if bound is not None:
            self._own[host] = bound
        self._has_addresses(host, ())
        if _is_address(host):
            self._count_for(host)
        elif bound is not None:
            self._tasks[host] = asyncio.get_running_loop().create_task(self._resolve(host))

    def _has_addresses(self, host: str, addresses: tuple[str, ...]) -> None:
        """The host's name stands for these, and for no others."""
        before = self._addresses.pop(host, ())
        for address in before:
            self._names[address].discard(host)
        if addresses:
            self._addresses[host] = addresses
        for address in addresses:
            self._names.setdefault(address, set()).add(host)
        for address in {*before, *addresses}:
            self._count_for(address)

    def _count_for(self, address: str) -> None:
        """Finds the quota of the address anew. Kafka takes that of the address or of its host, whichever has changed last."""
        names = self._names.get(address)
        bounds = [self._own[address]] if address in self._own else [self._own[name] for name in names or ()]
        if bounds:
            self._of[address] = min(bounds)
        else:
            self._of.pop(address, None)
        if names is not None and not names:
            del self._names[address]

    async def _resolve(self, host: str) -> None:
        """The quota of a host counts for the addresses that its name has now."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            log.warning("the quota of %s has no effect, because its address is unknown: %s", shown(host), problem)
            return
        self._has_addresses(host, tuple(sorted({str(row[4][0]) for row in found})))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host(node: str) -> str:
    """The name of a host, or the address in the form that connections have. Raises ValueError if it is no text."""
    host = desanitized(node)
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
