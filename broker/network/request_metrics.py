"""How many requests of each API were served, and how long they took (Kafka's RequestMetrics).

Every request is counted, by one decrement of an integer. Of an API with many requests, only some are timed, chosen at random, and each
of them stands for those since the one before, also for their version.

    received --queue--> taken from the channel --local--> the handler returns --remote--> the answer is handed to the connection

An answer that the handler itself gives has no remote time. Remote time is the time in the purgatory, or until an awaited step
(ZooKeeper, the controller, a disk) is done. The time until the client has read the answer is not part of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import random
from types import MappingProxyType
from typing import Final

from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.time_histogram import TimeHistogram

TIMED_PER_S: Final = 20
"""An API with more requests in a second has only about this many timed, but on average at least one in EVERY_MAX. Timing a request costs as
much as a tenth of serving a small one. The quantiles are those of 600 to 1,200 samples; Kafka's are those of 1,028."""
EVERY_MAX: Final = 256
PARTS: Final = ("requestqueuetimems", "localtimems", "remotetimems", "totaltimems")

FETCH: Final = "Fetch"
FETCH_CONSUMER: Final = "FetchConsumer"
FETCH_FOLLOWER: Final = "FetchFollower"


class Timing:
    """Times one request. Its methods are called in this order, except that `answered` may come first."""

    __slots__ = ("_began", "_handled", "_metrics", "_received", "_weight")

    def __init__(self, metrics: ApiMetrics, received: float, began: float, weight: int) -> None:
        self._metrics = metrics
        self._received = received
        self._began = began
        self._handled = 0.0
        self._weight = weight

    def handled(self) -> None:
        """The handler returned."""
        self._handled = self._metrics.monotonic()

    def answered(self) -> None:
        """To be called once."""
        metrics = self._metrics
        now = metrics.monotonic()
        handled = self._handled or now
        weight = self._weight
        metrics.queue.add(self._began - self._received, now, weight)
        metrics.local.add(handled - self._began, now, weight)
        metrics.remote.add(now - handled, now, weight)
        metrics.total.add(now - self._received, now, weight)


class ApiMetrics:
    """One API. Whoever handles a request decrements `until_timed`, and calls `time` if it is 0 then.

    `requests`: the number of requests by version, as of the last request that was timed or the last call of `settle`.
    """

    __slots__ = (
        "_chosen",
        "_count_before",
        "_every",
        "_timed_in_period",
        "_untimed",
        "_version",
        "local",
        "monotonic",
        "queue",
        "remote",
        "requests",
        "total",
        "until_timed",
    )

    def __init__(self, version_max: int, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.requests = [0] * (version_max + 1)
        self.until_timed = 1
        self.queue = TimeHistogram()
        self.local = TimeHistogram()
        self.remote = TimeHistogram()
        self.total = TimeHistogram()
        self._chosen = 1
        """The value that `until_timed` had when it was set."""
        self._untimed = 0
        """Requests that are in `requests` since the last one that was timed."""
        self._version = 0
        self._every = 1
        self._timed_in_period = 0
        self._count_before = 0

    def count(self, version: int, received: float) -> Timing | None:
        """Counts a request. The RequestHandler and Fetch do the same inline, because they do it for every request."""
        self.until_timed -= 1
        return self.time(version, received) if self.until_timed <= 0 else None

    def time(self, version: int, received: float) -> Timing:
        """Times the request that was counted last, and chooses the next one."""
        weight = self._untimed + self._chosen
        self.requests[version] += self._chosen
        self._untimed, self._version = 0, version
        self._timed_in_period += 1
        if self._timed_in_period > 2 * TIMED_PER_S:  # the requests have become many more
            self._every, self._timed_in_period = min(2 * self._every, EVERY_MAX), 0
        self._choose()
        return Timing(self, received, self.monotonic(), weight)

    def settle(self) -> None:
        """To be called every second: brings `requests` up to date, and adapts the share of the requests that are timed."""
        pending = self._chosen - self.until_timed
        self.requests[self._version] += pending
        self._untimed += pending
        count = sum(self.requests)
        self._every = max(1, min((count - self._count_before) // TIMED_PER_S, EVERY_MAX))
        self._count_before, self._timed_in_period = count, 0
        self._choose()

    def parts(self) -> tuple[TimeHistogram, ...]:
        """In the order of PARTS."""
        return self.queue, self.local, self.remote, self.total

    def _choose(self) -> None:
        every = self._every
        self.until_timed = self._chosen = 1 if every == 1 else 1 + int(random() * (2 * every - 1))


class RequestMetrics:
    """All APIs. Fetches of consumers and of followers are counted apart."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        fetch_max = SUPPORTED[ApiKey.FETCH].max
        self.fetch_consumer = ApiMetrics(fetch_max, monotonic)
        self.fetch_follower = ApiMetrics(fetch_max, monotonic)
        self.by_key: Mapping[ApiKey, ApiMetrics] = MappingProxyType(
            {key: ApiMetrics(versions.max, monotonic) for key, versions in SUPPORTED.items() if key != ApiKey.FETCH}
        )
        """All APIs but Fetch."""

    async def settle_regularly(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(1)
            self.settle()

    def settle(self) -> None:
        for api in (self.fetch_consumer, self.fetch_follower, *self.by_key.values()):
            api.settle()


def kafka_name(key: ApiKey) -> str:
    """`Produce`, `ApiVersions`: the API's name as in Kafka's metrics."""
    return "".join(word.capitalize() for word in key.name.split("_"))
