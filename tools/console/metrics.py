"""The brokers' metrics pages (docs/METRICS.md): bytes per second, and how long produces took since the last reading."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from tools.console.state import mean_between, summed

TIMEOUT_S = 1.5

COUNTERS = {
    "kafka_server_brokertopicmetrics_bytesin_total": "bytes_in",
    "kafka_server_brokertopicmetrics_bytesout_total": "bytes_out",
}
TIMES = "kafka_network_requestmetrics_totaltimems"
REQUESTS = {"Produce": "produce"}
SAMPLE = re.compile(
    rf'^(?:({"|".join(COUNTERS)})(?:\{{\}})?|({TIMES}_(?:sum|count))\{{request="(\w+)",?\}}) (\S+)', re.M
)

Reading = dict[str, tuple[float, float]]
"""Name -> (sum, count); a counter has its value in both."""


def read_page(text: str) -> Reading:
    """The samples that the console shows, of one broker's page."""
    found: dict[str, list[float]] = {}
    for counter, part, request, value in SAMPLE.findall(text):
        with contextlib.suppress(ValueError):
            if counter:
                found[COUNTERS[counter]] = [float(value)] * 2
            elif request in REQUESTS:
                found.setdefault(REQUESTS[request], [0.0, 0.0])[part.endswith("_count")] = float(value)
    return {name: (total, count) for name, (total, count) in found.items()}


def since(earlier: Mapping[str, Reading], later: Mapping[str, Reading], seconds: float) -> dict[str, Any]:
    """What happened between two readings of the same brokers: `bytes_in`, `bytes_out` (per second), `produce_ms` (the mean).

    A broker that has restarted, or was not there, does not count.
    """
    both = [
        broker
        for broker in later
        if broker in earlier
        and all(later[broker].get(name, (0, 0))[1] >= earlier[broker][name][1] for name in earlier[broker])
    ]
    before, after = summed([earlier[broker] for broker in both]), summed([later[broker] for broker in both])
    point: dict[str, Any] = {}
    for name in COUNTERS.values():
        if name in before and name in after:
            point[name] = (after[name][0] - before[name][0]) / seconds
    for name in REQUESTS.values():
        if name in after:
            mean = mean_between(before.get(name, (0.0, 0.0)), after[name])
            point[f"{name}_ms"] = None if mean is None else round(mean, 2)
    return point


class Metrics:
    """Reads all pages at once. `addresses`: broker -> `host:port` of its page."""

    def __init__(self, addresses: Callable[[], Mapping[str, str]]) -> None:
        self._addresses = addresses
        self._before: dict[str, Reading] = {}
        self._at_s = 0.0
        self._point: dict[str, Any] = {}

    def point(self) -> dict[str, Any]:
        """What the last two readings say; empty if no page is served."""
        return self._point

    async def read(self) -> None:
        addresses = self._addresses()
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            pages = await asyncio.gather(*(_page(session, address) for address in addresses.values()))
        at_s = time.monotonic()
        now = {broker: page for broker, page in zip(addresses, pages, strict=True) if page}
        self._point = since(self._before, now, at_s - self._at_s) if self._before and now else {}
        self._before, self._at_s = now, at_s


async def _page(session: aiohttp.ClientSession, address: str) -> Reading:
    """Empty if nobody serves it."""
    try:
        async with session.get(f"http://{address}/metrics") as answer:
            if answer.status != 200:
                return {}
            return await asyncio.to_thread(read_page, await answer.text())
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}
