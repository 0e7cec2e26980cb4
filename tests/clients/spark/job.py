"""Spark's Kafka source and sink as a program: `python job.py serve|stream JSON`. stdout has one JSON object per line.

It runs in the Spark of `.clients/spark`, so it imports nothing of the project.

`serve`: each line on stdin is a request, and gets one line as its answer. Ends when stdin closes.

    {"read": options}                  -> {"rows": [row..], "tasks": number of Spark's partitions}
    {"write": [row..], "options": ..}  -> {"written": number of rows}
    a request that failed              -> {"error": text}

A row has "topic", "partition", "key", "value" and "headers" ([[key, value]..]); a row that was read also has "offset" and
"timestamp_ms". Keys and values are text or null.

`stream {"source": options, "sink": options, "checkpoint": directory}`: writes "processed " + value for each record. Prints
`{"batch": id, "rows": n, "end": {topic: {partition: next offset}}}` after each micro-batch with rows. When stdin closes, it
processes what is there, and ends.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.1
COLUMNS = [
    "topic",
    "partition",
    "offset",
    "CAST(key AS STRING) AS key",
    "CAST(value AS STRING) AS value",
    "unix_millis(timestamp) AS timestamp_ms",
]
HEADERS = "transform(headers, h -> struct(h.key, CAST(h.value AS STRING) AS value)) AS headers"
OUTGOING = "topic STRING, partition INT, key STRING, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def read(session: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """A batch. Headers are read with the option `includeHeaders`."""
    frame = session.read.format("kafka").options(**options).load()
    columns = [*COLUMNS, HEADERS] if "headers" in frame.columns else COLUMNS
    rows = [row.asDict() for row in frame.selectExpr(*columns).collect()]
    return {"rows": rows, "tasks": frame.rdd.getNumPartitions()}


def write(session: SparkSession, rows: list[dict[str, Any]], options: dict[str, str]) -> dict[str, Any]:
    """A batch; a row without "partition" goes to the partition of its key."""
    found = [
        (
            row["topic"],
            row.get("partition"),
            row.get("key"),
            row.get("value"),
            [(key, None if value is None else value.encode()) for key, value in row.get("headers", [])],
        )
        for row in rows
    ]
    session.createDataFrame(found, OUTGOING).write.format("kafka").options(**options).save()
    return {"written": len(rows)}


def serve(session: SparkSession) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "read" in request:
                answer = read(session, request["read"])
            else:
                answer = write(session, request["write"], request["options"])
        except PySparkException as problem:
            answer = {"error": str(problem)}
        say(answer)


def stream(session: SparkSession, request: dict[str, Any]) -> None:
    """Raises StreamingQueryException if the query fails."""
    source: DataFrame = session.readStream.format("kafka").options(**request["source"]).load()
    processed = source.selectExpr("key", "concat('processed ', CAST(value AS STRING)) AS value")
    sink = processed.writeStream.format("kafka").options(**request["sink"])
    query = sink.option("checkpointLocation", request["checkpoint"]).start()
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    last = -1
    while not is_over.is_set() and not query.awaitTermination(POLL_S):
        for progress in query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"]:
                last = progress["batchId"]
                end = json.loads(progress["sources"][0]["endOffset"])
                say({"batch": last, "rows": progress["numInputRows"], "end": end})
    query.processAllAvailable()
    query.stop()


def main() -> None:
    session = SparkSession.builder.getOrCreate()
    try:
        if sys.argv[1] == "serve":
            serve(session)
        else:
            stream(session, json.loads(sys.argv[2]))
    finally:
        session.stop()


if __name__ == "__main__":
    main()
