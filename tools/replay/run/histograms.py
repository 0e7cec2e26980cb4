"""Histograms of times whose buckets grow by 1 %, so that percentiles of any number of operations need little memory (RPL-3).

Bucket b has the times around 1.01 ** b nanoseconds. A percentile is wrong by at most half a bucket, 0.5 %. Times below a microsecond
count as one microsecond. A maximum is exact, because it is kept beside the histogram.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

GROWTH = 1.01
SHORTEST_NS = 1000


def bucket_sql(nanoseconds: str) -> str:
    """The bucket of an SQL expression, null for null."""
    # Not `greatest`, which leaves a null out.
    return f"CAST(floor(ln(IF({nanoseconds} < {SHORTEST_NS}L, {SHORTEST_NS}L, {nanoseconds})) * {1 / math.log(GROWTH)!r}D + 0.5D) AS INT)"


def milliseconds(bucket: Any) -> Any:
    """The time of a bucket, or of a place between two; also of a numpy array."""
    return GROWTH**bucket / 1e6


def quantiles(counts: Any, values: Any, points: Any) -> Any:
    """For each row of `counts` (rows x buckets) the values at the quantiles `points`: rows x points, NaN for a row without counts.

    `values`: one for each bucket, rising.
    """
    sums = numpy.cumsum(counts, axis=1)
    totals = sums[:, -1]
    found = numpy.full((len(counts), len(points)), numpy.nan)
    for row in numpy.nonzero(totals)[0]:
        ranks = numpy.ceil(numpy.asarray(points) * totals[row])
        found[row] = values[numpy.searchsorted(sums[row], numpy.maximum(ranks, 1))]
    return found
