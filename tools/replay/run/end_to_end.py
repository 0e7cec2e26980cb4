"""End-to-end latency (RPL-3): from the time when a record was due to the first answer that brought it to a client of the replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from pyspark.sql import SparkSession

from tools.replay.run.histograms import bucket_sql, milliseconds, quantiles
from tools.replay.run.queries import query


def end_to_end(session: SparkSession, produced_until: int, points: Mapping[str, float]) -> dict[str, Any]:
    """Of the view `operations`: `records` that were read, their latency `ms` at these points (None without records), records that are
    `unread` at the end, and `drained_s`: how long after the last acknowledgement, `produced_until` in ns, the last record was read; None
    if some are unread. Partitions that nobody reads do not count, nor records from before the first fetch of all readers."""
    rows = session.sql(query("end_to_end").format(bucket=bucket_sql("latency"))).collect()
    read = sorted((row for row in rows if row["bucket"] is not None), key=lambda row: int(row["bucket"]))
    unread = sum(row["records"] for row in rows if row["is_unread"])
    if not read:
        return {"records": 0, "ms": None, "unread": unread, "drained_s": None}
    counts = numpy.array([[row["records"] for row in read]])
    values = milliseconds(numpy.array([float(row["bucket"]) for row in read]))
    longest = max(row["longest"] for row in read) / 1e6
    found = numpy.minimum(quantiles(counts, values, list(points.values()))[0], longest)
    ms = {name: float(value) for name, value in zip(points, found, strict=True)} | {"max": longest}
    last = max(row["last"] for row in read)
    return {
        "records": int(counts.sum()),
        "ms": ms,
        "unread": unread,
        "drained_s": None if unread else max(last - produced_until, 0) / 1e9,
    }
