"""How many requests of each API were served, and how long they took (Kafka's RequestMetrics).

Every request is counted. Of an API with many requests, only about TIMED_PER_S in a second are timed, chosen at random, and each of them
stands for those since the one before: a request costs the loop a tenth of a microsecond.

    received --queue--> taken from the channel --local--> the handler returns --remote--> the answer is handed to the connection

An answer that the handler itself gives has no remote time. Remote time is the time in the purgatory, or until an awaited step
(ZooKeeper, the controller, a disk) is done. The time until the client has read the answer is not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import random
from types import MappingProxyType

from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.time_histogram import TimeHistogram

TIMED_PER_S = 500
EVERY_MAX = 64
"""At least one in this many requests is timed, on average."""
PARTS = ("requestqueuetimems", "localtimems", "remotetimems", "totaltimems")

FETCH = "Fetch"
FETCH_CONSUMER = "FetchConsumer"
FETCH_FOLLOWER = "FetchFollower"


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
    """One API. `requests` has the number of requests by version; whoever counts one decrements `until_timed`, and calls `time` at 0."""

    __slots__ = (
        "_every",
        "_period_began",
        "_requests_before",
        "_timed_at",
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
        self._every = 1
        self._period_began = monotonic()
        self._requests_before = 0
        self._timed_at = 0

    def count(self, version: int, received: float) -> Timing | None:
        """Counts a request. The RequestHandler does the same inline, because it does it for every request."""
        self.requests[version] += 1
        self.until_timed -= 1
        return self.time(received) if self.until_timed <= 0 else None

    def time(self, received: float) -> Timing:
        """Times the request that was counted last, and chooses the next one."""
        now = self.monotonic()
        count = sum(self.requests)
        weight, self._timed_at = count - self._timed_at, count
        elapsed_s = now - self._period_began
        if elapsed_s >= 1:
            rate = (count - self._requests_before) / elapsed_s
            self._every = max(1, min(int(rate / TIMED_PER_S), EVERY_MAX))
            self._period_began, self._requests_before = now, count
        every = self._every
        self.until_timed = 1 if every == 1 else 1 + int(random() * (2 * every - 1))
        return Timing(self, received, now, weight)

    def parts(self) -> tuple[TimeHistogram, ...]:
        """In the order of PARTS."""
        return self.queue, self.local, self.remote, self.total


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


def kafka_name(key: ApiKey) -> str:
    """`Produce`, `ApiVersions`: the API's name as in Kafka's metrics."""
    return "".join(word.capitalize() for word in key.name.split("_"))
