"""The result of a load: counts and latencies, or an error that a person reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.failures import AdminError

FIRST_ANSWER_S = 30.0
"""A measurement without an answer goes on until the first one, for at most this time. `generator.c` has the same number."""


class BenchError(AdminError):
    """A measurement that is not possible: one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was answered in `seconds`, which begin after the warm-up, and how long the answers took.

    `bytes`: the values of produced records; whole batches of fetched ones (librdkafka: values). `client_cpu_s` is CPU time
    of the generator. `max_ms` includes a request that was not answered at the end.
    """

    requests: int
    records: int
    bytes: int
    seconds: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """The state after `second` whole seconds; it counts from the end of the warm-up, and is 0 before."""

    second: int
    requests: int
    records: int
    bytes: int


def answered(found: Measurement) -> Measurement:
    """The same. Raises BenchError if nothing was answered."""
    if not found.requests:
        raise BenchError(f"nothing was answered within {found.seconds:.1f} s")
    return found


OnProgress = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """For callers that show no progress."""


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """0.0 if there are no values."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))] if sorted_values else 0.0


def measurement(
    requests: int, records: int, size: int, seconds: float, latencies_s: Sequence[float], client_cpu_s: float
) -> Measurement:
    """The measurement of a generator that kept its latencies."""
    ordered = sorted(latencies_s)
    p50, p95, p99, p999 = (quantile(ordered, share) * 1000 for share in (0.5, 0.95, 0.99, 0.999))
    longest = ordered[-1] * 1000 if ordered else 0.0
    return Measurement(requests, records, size, seconds, p50, p95, p99, p999, longest, client_cpu_s)
