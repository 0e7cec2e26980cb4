-- When the operations of a partition ended, by bins of {bin} ns. An operation waits from when it was ready.
-- An answer that may have waited for a generator that stood still counts as early as it may have come.
WITH waits AS (
    SELECT topic, partition, coalesce(ready, scheduled) AS began, error IS NULL AS acknowledged,
        coalesce(unheard, answered, {ended}L) AS done
    FROM operations WHERE op = 'produce'
)
SELECT topic, partition, floor(done / {bin}L) AS bin, min(began) AS oldest,
    coalesce(min(IF(acknowledged, done, NULL)), max(done)) AS ended, max(IF(acknowledged, done, NULL)) AS acknowledged
FROM waits GROUP BY topic, partition, floor(done / {bin}L)
