-- When the operations of a partition ended, by bins of {bin} ns; {chunk} bins are a chunk.
WITH waits AS (
    SELECT topic, partition, scheduled, error IS NULL AS acknowledged, coalesce(answered, {ended}L) AS done
    FROM operations WHERE op = 'produce'
)
SELECT topic, partition, floor(done / {bin}L) AS bin, floor(done / ({bin}L * {chunk}L)) AS chunk,
    min(scheduled) AS oldest, coalesce(min(IF(acknowledged, done, NULL)), max(done)) AS ended,
    max(IF(acknowledged, done, NULL)) AS acknowledged
FROM waits GROUP BY topic, partition, floor(done / {bin}L), floor(done / ({bin}L * {chunk}L))
