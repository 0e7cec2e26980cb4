"""Consumer lag over time (RPL-3): records that are acknowledged and that the slowest client of the partition did not fetch yet.

A client counts from its first fetch of a partition until its last fetch of it was due. Its position at the end of an interval is the
offset after its last answer. The end of a partition is the offset after its last acknowledged batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from tools.replay.run.cube import Grid, literal
from tools.replay.run.outage_windows import values
from tools.replay.run.queries import query


def lags(
    session: SparkSession, grid: Grid, intervals: int, topics: Sequence[str], start_offsets: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """The lag of these topics at the end of each interval: `at` (interval), `topic`, `records`."""
    starts = [
        (topic, partition, offset) for topic in topics for partition, offset in enumerate(start_offsets.get(topic, ()))
    ]
    if not starts:
        return []
    text = query("lag").format(
        came=grid.interval_sql("answered"),
        due=grid.interval_sql("scheduled"),
        topics=", ".join(map(literal, topics)),
        starts=values(starts, "topic, partition, position"),
        last=intervals - 1,
    )
    return [row.asDict() for row in session.sql(text).collect()]
