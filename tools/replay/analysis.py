"""Analyses the operations of a replay with Spark SQL (RPL-3); returns lists and dicts, ready for JSON.

Latency counts from when an operation was due. An **outage** of a partition is a window without an acknowledgement in which at
least one operation was due and not acknowledged. It starts at the previous acknowledgement or, if nothing was waiting then, when
the oldest waiting operation became due. It ends with the next acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tools.replay.plan import Fault, Plan

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
DISTRIBUTION = [
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985),
    *(0.99, 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999, 1.0),
]

# `windows` looks ahead by looking back in descending order: Spark recomputes frames that end at UNBOUNDED FOLLOWING for each
# row, which would take quadratic time.
VIEWS = {
    "produced": """
        SELECT *, error IS NULL AS acknowledged, (answered - scheduled) * 1000 AS latency_ms
        FROM operations WHERE op = 'produce'
    """,
    "reads": """
        SELECT *, (answered - scheduled) * 1000 AS latency_ms
        FROM operations WHERE op = 'fetch' AND answered IS NOT NULL
    """,
    # The end of the measurement replaces missing answers.
    "bounds": """
        SELECT min(scheduled) AS began, max(greatest(scheduled, coalesce(answered, scheduled))) AS ended
        FROM operations
    """,
    "waits": """
        SELECT partition, leader, scheduled, acknowledged, coalesce(answered, ended) AS done
        FROM produced CROSS JOIN bounds
    """,
    "windows": """
        SELECT partition, done AS ended,
            greatest(oldest_waiting, coalesce(last_acknowledged, oldest_waiting)) AS began
        FROM (
            SELECT partition, done,
                min(scheduled) OVER (
                    PARTITION BY partition ORDER BY done DESC RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
                ) AS oldest_waiting,
                max(CASE WHEN acknowledged THEN done END) OVER (
                    PARTITION BY partition ORDER BY done ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS last_acknowledged
            FROM waits
        )
    """,
    "copies": """
        SELECT event_id, count(*) AS reads, count(DISTINCT partition, offset) AS copies FROM reads GROUP BY event_id
    """,
}
USED_OFTEN = ("windows", "copies")


def analyse(session: SparkSession, operations: DataFrame, plan: Plan, faults: Sequence[Fault]) -> dict[str, Any]:
    """All tables of one replay."""
    operations.cache().createOrReplaceTempView("operations")
    for name, text in VIEWS.items():
        view = session.sql(text)
        (view.cache() if name in USED_OFTEN else view).createOrReplaceTempView(name)
    began, ended = session.sql("SELECT began, ended FROM bounds").first() or (0.0, 0.0)
    return {
        "run": plan.run,
        "topic": plan.topic,
        "bootstrap_servers": plan.bootstrap_servers,
        "speed": plan.speed,
        "trace_first_time_us": plan.first_time_us,
        "trace_last_time_us": plan.last_time_us,
        "tasks": {"producing": plan.producers, "reading": plan.readers},
        "began": began,
        "seconds": ended - began,
        "totals": totals(session),
        "latency_ms": latencies(session, "produced WHERE acknowledged"),
        "read_latency_ms": latencies(session, "reads"),
        "distribution": distribution(session),
        "by_second": by_second(session, began),
        "errors": rows(
            session,
            "SELECT op, error, count(*) AS operations FROM operations WHERE error IS NOT NULL"
            " GROUP BY op, error ORDER BY operations DESC, op, error",
        ),
        "partitions": partitions(session),
        "faults": [
            fault_cost(session, plan, fault, began, end, ended)
            for fault, end in zip(faults, [*(fault.at for fault in faults[1:]), ended], strict=False)
        ],
    }


def rows(session: SparkSession, text: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in session.sql(text).collect()]


def totals(session: SparkSession) -> dict[str, Any]:
    """Counts of events. `lost`: acknowledged, never read. `duplicated`: additional copies that were read at other
    offsets. `read_again`: the same offset was read more than once, which is due to the reader, not the log."""
    return rows(
        session,
        """
        SELECT * FROM (
            SELECT count(sent) AS sent, count_if(acknowledged) AS acknowledged,
                count_if(NOT acknowledged) AS failed,
                coalesce(sum(CASE WHEN acknowledged THEN bytes END), 0) AS acknowledged_bytes,
                coalesce(count_if(acknowledged) / (max(answered) - min(scheduled)), 0) AS acknowledged_per_second
            FROM produced
        ) CROSS JOIN (
            SELECT count(*) AS read, coalesce(sum(copies - 1), 0) AS duplicated,
                coalesce(sum(reads - copies), 0) AS read_again
            FROM copies
        ) CROSS JOIN (
            SELECT count(*) AS lost FROM produced LEFT ANTI JOIN copies USING (event_id) WHERE acknowledged
        )
        """,
    )[0]


def latencies(session: SparkSession, source: str) -> dict[str, float | None]:
    return quantiles(session, source, list(PERCENTILES.values()), list(PERCENTILES))


def quantiles(session: SparkSession, source: str, points: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    """Exact percentiles of `latency_ms`, by name; all None without rows."""
    array = ", ".join(f"{point}D" for point in points)
    found = session.sql(f"SELECT percentile(latency_ms, array({array})) FROM {source}").first()
    values = found[0] if found is not None and found[0] is not None else [None] * len(points)
    return dict(zip(names, values, strict=True))


def distribution(session: SparkSession) -> list[dict[str, Any]]:
    """Latency (ms) at increasing quantiles, for acknowledgements and reads."""
    names = [repr(point) for point in DISTRIBUTION]
    produced = quantiles(session, "produced WHERE acknowledged", DISTRIBUTION, names)
    read = quantiles(session, "reads", DISTRIBUTION, names)
    return [
        {"quantile": point, "acknowledged_ms": produced[name], "read_ms": read[name]}
        for point, name in zip(DISTRIBUTION, names, strict=True)
    ]


def by_second(session: SparkSession, began: float) -> list[dict[str, Any]]:
    """Per second of the replay: events due, acknowledged and read in it, and the latency of those due."""
    return rows(
        session,
        f"""
        WITH marks AS (
            SELECT floor(scheduled - {began!r}D) AS second, 1 AS due, 0 AS acknowledged, 0 AS read,
                CASE WHEN acknowledged THEN latency_ms END AS latency_ms FROM produced
            UNION ALL
            SELECT floor(answered - {began!r}D), 0, 1, 0, NULL FROM produced WHERE acknowledged
            UNION ALL
            SELECT floor(answered - {began!r}D), 0, 0, 1, NULL FROM reads
        )
        SELECT CAST(second AS int) AS second, CAST(sum(due) AS int) AS due,
            CAST(sum(acknowledged) AS int) AS acknowledged, CAST(sum(read) AS int) AS read,
            percentile(latency_ms, 0.5D) AS p50_ms, percentile(latency_ms, 0.99D) AS p99_ms, max(latency_ms) AS max_ms
        FROM marks GROUP BY second ORDER BY second
        """,
    )


def partitions(session: SparkSession) -> list[dict[str, Any]]:
    """Per partition: events, errors, all its leaders, and the longest window without an acknowledgement."""
    return rows(
        session,
        """
        SELECT produced.partition, count(*) AS events, count_if(NOT acknowledged) AS failed,
            array_sort(collect_set(leader)) AS leaders, any_value(longest) AS longest_outage_s
        FROM produced JOIN (SELECT partition, max(ended - began) AS longest FROM windows GROUP BY partition) AS worst
            ON worst.partition = produced.partition
        GROUP BY produced.partition ORDER BY produced.partition
        """,
    )


def fault_cost(
    session: SparkSession, plan: Plan, fault: Fault, began: float, next_at: float, ended: float
) -> dict[str, Any]:
    """One fault and, per partition, the longest outage that overlaps the time from it to the next fault.

    An outage of one of this broker's partitions that lasts into the next fault counts completely. A partition without traffic in
    that time has no window, so its outage is unknown (`seconds` 0, `due` 0).
    """
    found = rows(
        session,
        f"""
        SELECT spans.partition, coalesce(spans.seconds, 0D) AS seconds, coalesce(dues.due, 0) AS due
        FROM (
            SELECT partition, max(CASE WHEN ended > {fault.at!r}D AND began < {next_at!r}D THEN ended - began END)
                AS seconds
            FROM windows GROUP BY partition
        ) AS spans LEFT JOIN (
            SELECT partition, count(*) AS due FROM produced
            WHERE scheduled >= {fault.at!r}D AND scheduled < {next_at!r}D GROUP BY partition
        ) AS dues ON dues.partition = spans.partition
        ORDER BY spans.partition
        """,
    )
    by_partition = {row["partition"]: row for row in found}
    return {
        "kind": fault.kind,
        "broker": fault.broker,
        "second": fault.at - began,
        "until_second": min(next_at, ended) - began,
        "outages": [
            {
                "topic": plan.topic,
                "partition": partition,
                "led_by_broker": partition in fault.partitions,
                "seconds": by_partition.get(partition, {}).get("seconds", 0.0),
                "due": by_partition.get(partition, {}).get("due", 0),
            }
            for partition in range(plan.partition_count)
        ],
    }
