"""Values of hosts, which an admin names by address or by name, for the addresses of connections (`InetAddress.getByName` in Kafka)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Collection

from protocol.topic_names import shown

log = logging.getLogger(__name__)


class ByHost:
    """The value of a name counts for the addresses that it has when it is set. They are looked up outside of the loop."""

    def __init__(self, what: str, turn: asyncio.Semaphore | None = None) -> None:
        """`what`: the value, for the log. `turn`: who looks for addresses waits for it.

        A loop looks for few names at once, and the broker has names of its own to look for.
        """
        self._what = what
        self._turn = turn or asyncio.Semaphore(1)
        self._of: dict[str, float] = {}
        """By address: its own value, or the least of those of hosts that have it."""
        self._own: dict[str, float] = {}
        """By address, or the name of a host: the value in the settings."""
        self._addresses: dict[str, tuple[str, ...]] = {}
        """Those of the names of hosts, as far as they are known."""
        self._names: dict[str, set[str]] = {}
        """By address: the hosts that have it."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """Those that look for the addresses of a host."""

    def get(self, address: str, default: float | None = None) -> float | None:
        """The value of this address, or the default."""
        return self._of.get(address, default)

    def keep(self, hosts: Collection[str]) -> None:
        """Other hosts have no values."""
        for host in [host for host in self._own if host not in hosts]:
            self.set(host, None)

    def set(self, host: str, value: float | None) -> None:
        """`host`: as `host_of` returns it. `value` None: it has none. For the name of a host, a loop must run."""
        if (earlier := self.tasks.pop(host, None)) is not None:
            earlier.cancel()
        self._own.pop(host, None)
        if value is not None:
            self._own[host] = value
        self._has_addresses(host, ())
        if _is_address(host):
            self._count_for(host)
        elif value is not None:
            self.tasks[host] = asyncio.get_running_loop().create_task(self._resolve(host))

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
        """Finds the value of the address anew. Kafka takes that of the address or of its host, whichever has changed last."""
        names = self._names.get(address)
        values = [self._own[address]] if address in self._own else [self._own[name] for name in names or ()]
        if values:
            self._of[address] = min(values)
        else:
            self._of.pop(address, None)
        if names is not None and not names:
            del self._names[address]

    async def _resolve(self, host: str) -> None:
        try:
            async with self._turn:
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            log.warning("%s of %s has no effect, because its address is unknown: %s", self._what, shown(host), problem)
            return
        self._has_addresses(host, tuple(sorted({str(row[4][0]) for row in found})))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(text: str) -> str:
    """The name of a host, or the address in the form that connections have."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text
