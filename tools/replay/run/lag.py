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

LAG = """
    WITH places AS (
        SELECT topic, partition, IF(op = 'fetch', client, NULL) AS reader,
            coalesce(IF(error IS NULL, {came}, NULL), {due}) AS at, IF(error IS NULL, offset + records, NULL) AS position, answered
        FROM operations WHERE topic IN ({topics}) AND (op = 'fetch' OR offset IS NOT NULL)
        UNION ALL
        SELECT topic, CAST(partition AS INT), NULL, -1, position, 0L FROM {starts}
    ), positions AS (
        SELECT topic, partition, reader, at,
            IF(reader IS NULL, max(position), max_by(position, answered) FILTER (WHERE position IS NOT NULL)) AS position
        FROM places GROUP BY topic, partition, reader, at
    ), spans AS (
        SELECT topic, partition, reader, at, following,
            IF(reader IS NULL, max(position) OVER past, last_value(position) IGNORE NULLS OVER past) AS position
        FROM (SELECT *, lead(at) OVER (PARTITION BY topic, partition, reader ORDER BY at) AS following FROM positions)
        WINDOW past AS (PARTITION BY topic, partition, reader ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ), dense AS (
        SELECT topic, partition, reader, position,
            explode(sequence(at, coalesce(following - 1, IF(reader IS NULL, {last}, at)))) AS at
        FROM spans WHERE position IS NOT NULL
    ), lags AS (
        SELECT topic, partition, at, max(IF(reader IS NULL, position, NULL)) - min(IF(reader IS NULL, NULL, position)) AS records
        FROM dense GROUP BY topic, partition, at
    )
    SELECT at, topic, sum(greatest(records, 0)) AS records FROM lags WHERE records IS NOT NULL AND at >= 0
    GROUP BY at, topic ORDER BY at, topic
"""


def lags(
    session: SparkSession, grid: Grid, intervals: int, topics: Sequence[str], start_offsets: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """The lag of these topics at the end of each interval: `at` (interval), `topic`, `records`."""
    starts = [
        (topic, partition, offset) for topic in topics for partition, offset in enumerate(start_offsets.get(topic, ()))
    ]
    if not starts:
        return []
    query = LAG.format(
        came=grid.interval_sql("answered"),
        due=grid.interval_sql("scheduled"),
        topics=", ".join(map(literal, topics)),
        starts=values(starts, "topic, partition, position"),
        last=intervals - 1,
    )
    return [row.asDict() for row in session.sql(query).collect()]
