"""How Kafka measures what clients use, and how long they must wait (`Rate`, `TokenBucket`, `QuotaUtils`). Pure.

Times are whole milliseconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

from broker.settings.config import INT_MAX


class Window(NamedTuple):
    """`quota.window.num` samples of `quota.window.size.seconds` each; `size_ms` in milliseconds."""

    samples: int = 11
    size_ms: int = 1000

    @property
    def age_ms(self) -> int:
        """How old a sample becomes."""
        return self.samples * self.size_ms

    @property
    def full_s(self) -> int:
        """Seconds of all samples but the one that is being filled."""
        return (self.samples - 1) * self.size_ms // 1000


class _Sample:
    __slots__ = ("began", "last", "value")

    def __init__(self, now: int, value: float) -> None:
        self.began = self.last = now
        self.value = value


class SampledRate:
    """The rate of a sum over the last samples. A sample counts until nothing was added to it for the age of the window."""

    __slots__ = ("_samples", "_total", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: deque[_Sample] = deque(maxlen=window.samples + 1)
        self._total = 0.0

    @property
    def last_ms(self) -> int | None:
        """When something was added last."""
        return self._samples[-1].last if self._samples else None

    def record(self, value: float, now: int) -> None:
        """Adds `value`, which may be negative: it takes back what was added before."""
        samples = self._samples
        if samples:
            newest = samples[-1]
            if now - newest.began < self._window.size_ms:
                newest.value += value
                newest.last = now
                self._total += value
                return
        is_full = len(samples) > self._window.samples
        samples.append(_Sample(now, value))
        self._total = sum(sample.value for sample in samples) if is_full else self._total + value

    def rate(self, now: int) -> float:
        """In each second. It changes nothing, so that another thread may ask."""
        samples = [sample for sample in list(self._samples) if now - sample.last < self._window.age_ms]
        elapsed = self._elapsed(samples[0].began if samples else now, now)
        return sum(sample.value for sample in samples) / (elapsed / 1000)

    def wait_ms(self, bound: float, now: int) -> float:
        """How long it takes until the rate is within the bound, if nothing is added; 0: it is now. Infinite for the bound 0.

        W + X milliseconds bring the rate from O to T = O * W / (W + X). So X = (O - T) / T * W.
        """
        rate, window_ms = self._measured(now)
        if rate <= bound:
            return 0
        return (rate - bound) / bound * window_ms if bound else math.inf

    def _measured(self, now: int) -> tuple[float, int]:
        """The rate, and the milliseconds over which it is taken."""
        window, samples = self._window, self._samples
        if samples and now - samples[0].last >= window.age_ms:
            while samples and now - samples[0].last >= window.age_ms:
                samples.popleft()
            self._total = sum(sample.value for sample in samples)
        elapsed = self._elapsed(samples[0].began if samples else now, now)
        return self._total / (elapsed / 1000), elapsed

    def _elapsed(self, since: int, now: int) -> int:
        """Milliseconds since then, and of the samples that the window would have besides."""
        window = self._window
        elapsed = now - since
        missing = window.samples - 1 - elapsed // window.size_ms
        return max(elapsed + max(missing, 0) * window.size_ms, 1)


class TokenBucket:
    """Tokens that come at the rate of the quota, at most those of a whole window. Who takes more than there are owes the rest."""

    __slots__ = ("_last", "_tokens", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._tokens: float | None = None
        self._last = 0

    @property
    def last_ms(self) -> int | None:
        """When it was looked at last."""
        return None if self._tokens is None else self._last

    def tokens(self, rate: float, now: int) -> float:
        """Those that there are; negative: those that are owed."""
        self._tokens = tokens = self.left(rate, now)
        self._last = now
        return tokens

    def left(self, rate: float, now: int) -> float:
        """As `tokens`. It changes nothing, so that another thread may ask."""
        burst = self._burst(rate)
        return burst if self._tokens is None else min(burst, self._tokens + rate * (now - self._last) / 1000)

    def take(self, rate: float, count: float, now: int) -> None:
        """Takes so many, also more than there are."""
        self._tokens = min(self._burst(rate), self.tokens(rate, now) - count)

    def wait_ms(self, rate: float, now: int) -> float:
        """How long it takes until none is owed. Infinite for the rate 0, negative for a negative rate."""
        tokens = self.tokens(rate, now)
        if tokens >= 0:
            return 0
        return -tokens / rate * 1000 if rate else math.inf

    def _burst(self, rate: float) -> float:
        return self._window.age_ms / 1000 * rate


FOR_EVER: Final = 0
"""The throttle time of a wait that never ends. Kafka's overflows, and then it does not wait at all."""


def throttle_time(wait_ms: float, limit_ms: int | None = None) -> int:
    """Kafka's throttle time for a wait, in whole milliseconds, at most `limit_ms`; 0: none. Kafka's overflows after 24 days."""
    if limit_ms is not None and wait_ms > limit_ms:
        return limit_ms
    if math.isinf(wait_ms) or math.isnan(wait_ms):
        return FOR_EVER
    return max(0, min(math.floor(wait_ms + 0.5), INT_MAX))
