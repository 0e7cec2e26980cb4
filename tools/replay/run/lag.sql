-- The lag of each topic at the end of each interval.
WITH places AS (
    SELECT topic, partition, IF(op = 'fetch', client, NULL) AS reader,
        coalesce(IF(error IS NULL, {came}, NULL), {due}) AS at,
        IF(error IS NULL, IF(op = 'produce', offset + records, offset), NULL) AS position, answered
    FROM operations WHERE topic IN ({topics}) AND (op = 'fetch' OR offset IS NOT NULL)
    UNION ALL
    SELECT read.topic, read.partition, client, {came}, read.stop, answered
    FROM (SELECT client, answered, explode(reads) AS read FROM operations WHERE error IS NULL) WHERE read.topic IN ({topics})
    UNION ALL
    SELECT topic, CAST(partition AS INT), NULL, -1, position, 0L FROM {starts}
), positions AS (
    SELECT topic, partition, reader, at,
        IF(reader IS NULL, max(position), max_by(position, struct(answered, position)) FILTER (WHERE position IS NOT NULL)) AS position
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
