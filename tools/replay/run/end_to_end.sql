-- How long after they were due records were first read, by buckets of the time. `read`: what a client reads beyond where it had been.
-- The read of a batch is the client's first one that ends behind it. Spark recomputes frames that end at UNBOUNDED FOLLOWING for each
-- row, so the order is descending. Without a `latency`: no client has read so far (`is_unread`), or all began to read behind it.
WITH answers AS (
    SELECT client, answered, explode(reads) AS read FROM operations WHERE op = 'fetch' AND error IS NULL
), positions AS (
    SELECT read.topic, read.partition, client, read.begin, read.stop, answered,
        max(read.stop) OVER (
            PARTITION BY read.topic, read.partition, client ORDER BY answered, read.stop ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before
    FROM answers
), reads AS (
    SELECT topic, partition, client, IF(before > begin, before, begin) AS begin, stop, answered
    FROM positions WHERE before IS NULL OR stop > before
), batches AS (
    SELECT topic, partition, offset, offset + records - 1 AS last, records, scheduled FROM operations
    WHERE op = 'produce' AND error IS NULL AND offset IS NOT NULL AND records > 0
), events AS (
    SELECT topic, partition, client, stop - 1 AS last, struct(begin, answered) AS read, NULL AS offset, NULL AS records, NULL AS scheduled
    FROM reads
    UNION ALL
    SELECT topic, partition, client, last, NULL, offset, records, scheduled
    FROM batches JOIN (SELECT DISTINCT topic, partition, client FROM reads) USING (topic, partition)
), matched AS (
    SELECT *, last_value(read) IGNORE NULLS OVER (
        PARTITION BY topic, partition, client ORDER BY last DESC, offset NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS found
    FROM events
), firsts AS (
    SELECT scheduled, records, count(found) = 0 AS is_unread,
        min(IF(found.begin <= last, struct(found.answered, last - greatest(found.begin, offset) + 1 AS records), NULL)) AS first
    FROM matched WHERE offset IS NOT NULL GROUP BY topic, partition, offset, records, scheduled
), latencies AS (
    SELECT is_unread, coalesce(first.records, records) AS records, first.answered, first.answered - scheduled AS latency FROM firsts
)
SELECT {bucket} AS bucket, is_unread, sum(records) AS records, max(latency) AS longest, max(answered) AS last
FROM latencies GROUP BY {bucket}, is_unread
