"""Replication throttles (KIP-73): limit the bytes per second that are copied for replicas outside the ISR. Pure.

A window of samples (`replication.quota.window.num` of `replication.quota.window.size.seconds`) slides over the copied bytes.
A batch is sent whole, so more can be copied than the rate allows. The excess is not forgotten when its sample leaves the window: it
is owed until enough time has passed. In t seconds at most rate x t bytes are copied, plus one burst. The burst is what the window
had left (at its start, the bytes of one sample), plus the answer that exceeded it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.settings.config import LONG_MAX, TopicConfig, throttled_replicas

UNLIMITED = LONG_MAX
FREE_S_MIN = 0.02
"""Shortest pause of a throttled copy."""


class ByteRateWindow:
    """Counts bytes. Rates are bytes per second, times are seconds of one monotonic clock."""

    def __init__(self, *, samples: int, sample_s: float) -> None:
        self._sample_s = sample_s
        self._window_s = samples * sample_s
        self._samples: deque[list[float]] = deque()
        self._total = 0.0
        self._owed = 0.0
        self._since = 0.0

    def record(self, size: int, rate: float, now: float) -> None:
        """Counts `size` bytes as copied at `now`."""
        self._slide(rate, now)
        if self._samples and now - self._samples[-1][0] < self._sample_s:
            self._samples[-1][1] += size
        else:
            self._samples.append([now, float(size)])
        self._total += size

    def excess(self, rate: float, now: float) -> float:
        """The bytes copied beyond the rate. If negative: the bytes that may still be copied now."""
        self._slide(rate, now)
        return self._owed + self._total - rate * max(now - self._since, self._sample_s)

    def _slide(self, rate: float, now: float) -> None:
        while self._samples and now - self._samples[0][0] >= self._window_s:
            _, size = self._samples.popleft()
            self._total -= size
            self._owed += size
            self._pay(rate, self._samples[0][0] if self._samples else now)
        if not self._samples:
            self._total = 0.0
            self._pay(rate, now)

    def _pay(self, rate: float, until: float) -> None:
        self._owed = max(0.0, self._owed - rate * (until - self._since))
        self._since = until


class ReplicationThrottle:
    """One throttle of a broker: for what others copy from it (leader), for what it copies (follower), or for moves between disks."""

    def __init__(
        self,
        own_id: int,
        replicas_of: Callable[[TopicConfig], str],
        now: Callable[[], float],
        *,
        rate: int = UNLIMITED,
        samples: int = 11,
        sample_s: float = 1.0,
    ) -> None:
        """`replicas_of` returns a topic's list of throttled replicas. `rate` is in bytes per second; 0 stops their copying."""
        self.rate = rate
        self._own_id = own_id
        self._replicas_of = replicas_of
        self._now = now
        self._window = ByteRateWindow(samples=samples, sample_s=sample_s)

    def applies_to(self, config: TopicConfig, partition: int) -> bool:
        """Whether this broker's replica of that partition is throttled."""
        text = self._replicas_of(config)
        if not text or self.rate >= UNLIMITED:
            return False
        replicas = throttled_replicas(text)
        return replicas is None or (partition, self._own_id) in replicas

    def record(self, size: int) -> None:
        """Counts `size` bytes of throttled replicas as copied now."""
        if size and self.rate < UNLIMITED:
            self._window.record(size, self.rate, self._now())

    def is_exceeded(self, pending: int = 0) -> bool:
        """Whether nothing more may be copied now. `pending` bytes are about to be recorded."""
        if self.rate >= UNLIMITED:
            return False
        return self._window.excess(self.rate, self._now()) + pending >= 0

    def free_in(self) -> float:
        """Seconds until something may be copied; 0: now."""
        if not self.is_exceeded():
            return 0.0
        if self.rate == 0:
            return float("inf")
        return max(self._window.excess(self.rate, self._now()) / self.rate, FREE_S_MIN)
