-- The last acknowledgement before a bin, and the oldest operation that ends in it or later, come from its chunk and from the other
-- chunks. `candidates` looks ahead by looking back in descending order: Spark recomputes frames that end at UNBOUNDED FOLLOWING for each
-- row, which would take quadratic time. A short candidate between two bins with an acknowledgement is no part of a window. There are many
-- of these, so they are left out before the rest is put together: bins of a window have the same acknowledgement before them, and these
-- are few, while a slow partition may have candidates in all of its bins.
WITH chunks AS (
    SELECT topic, partition, chunk,
        max(acknowledged) OVER (
            PARTITION BY topic, partition ORDER BY chunk ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS acknowledged_before,
        min(oldest) OVER (
            PARTITION BY topic, partition ORDER BY chunk DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS oldest_after
    FROM (
        SELECT topic, partition, chunk, max(acknowledged) AS acknowledged, min(oldest) AS oldest
        FROM bins GROUP BY topic, partition, chunk
    )
), looked_ahead AS (
    SELECT topic, partition, chunk, bin, ended, acknowledged,
        min(oldest) OVER (
            PARTITION BY topic, partition, chunk ORDER BY bin DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS oldest
    FROM bins
), looked_back AS (
    SELECT *,
        max(acknowledged) OVER (
            PARTITION BY topic, partition, chunk ORDER BY bin ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before,
        lag(acknowledged) OVER (PARTITION BY topic, partition, chunk ORDER BY bin) AS just_before
    FROM looked_ahead
), joined AS (
    SELECT topic, partition, bin, ended, acknowledged, just_before,
        coalesce(before, acknowledged_before) AS before, least(oldest, oldest_after) AS oldest
    FROM looked_back JOIN chunks USING (topic, partition, chunk)
), candidates AS (
    SELECT topic, partition, bin, ended, acknowledged, just_before, before,
        greatest(oldest, coalesce(before, oldest)) AS began
    FROM joined
), islands AS (
    SELECT *, sum(is_new) OVER (
        PARTITION BY topic, partition, before ORDER BY bin ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS island
    FROM (
        SELECT *, IF(
            began <= lag(ended) OVER (PARTITION BY topic, partition, before ORDER BY bin), 0, 1
        ) AS is_new
        FROM candidates WHERE acknowledged IS NULL OR just_before IS NULL OR ended - began >= {bin}L
    )
)
SELECT topic, partition, min(began) AS began, max(ended) AS ended
FROM islands GROUP BY topic, partition, before, island HAVING max(ended) - min(began) >= {bin}L
