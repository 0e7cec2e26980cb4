-- The rows of a trace from the requests of a log. `requests`, `names`, `ends` and `fetched` are views of request_log.py.
-- The order of the log is `completed`, then `place`.

-- view arrived
-- A connection's requests are handled one after the other, so none arrives before the one ahead of it.
SELECT *, max(arrived) OVER (PARTITION BY connection ORDER BY completed, place) AS at_ns
FROM requests WHERE kind IN ('produce', 'fetch', 'offsets', 'commit', 'abort', 'init')

-- view transactions
-- What belongs to transactions besides batches: offsets of partitions, and ends.
SELECT at_ns, completed, place, kind AS op, client, coalesce(name, key, '') AS topic, coalesce(partition, 0) AS partition, transactional_id, `group`
FROM (
    SELECT at_ns, completed, place, kind, client, transactional_id, `group`, part.*
    FROM arrived LATERAL VIEW OUTER inline(batches) part AS key, partition, base, size WHERE kind NOT IN ('produce', 'fetch')
) LEFT JOIN names USING (key)
WHERE kind <> 'offsets' OR key IS NOT null

-- view batches
-- The batches that were appended, and the markers of transactions. `base`: null if the log does not say it.
SELECT at_ns, completed, place, client, coalesce(name, key) AS topic, partition, size, IF(base < 0, null, base) AS base, acks, transactional,
    transactional_id, appended, is_marker
FROM (
    SELECT at_ns, completed, place, client, part.*, acks, transactional, transactional_id, appended, false AS is_marker
    FROM arrived LATERAL VIEW inline(batches) part AS key, partition, base, size WHERE kind = 'produce'
    UNION ALL
    SELECT null, completed, place, null, part.*, null, null, null, appended, true
    FROM requests LATERAL VIEW inline(batches) part AS key, partition, base, size WHERE kind = 'marker'
) LEFT JOIN names USING (key)

-- view generations
-- Offsets that start again, far behind those of 64 batches ago, are of a topic that was deleted and created again.
SELECT *, sum(IF(is_behind AND NOT was_behind, 1, 0)) OVER (PARTITION BY topic, partition ORDER BY completed, place) AS generation
FROM (
    SELECT *, coalesce(lag(is_behind) IGNORE NULLS OVER (PARTITION BY topic, partition ORDER BY completed, place), false) AS was_behind
    FROM (
        SELECT *, base < lag(base, 64) IGNORE NULLS OVER (PARTITION BY topic, partition ORDER BY completed, place) AS is_behind
        FROM batches
    )
)

-- view gaps
-- A batch without a base offset lies behind the last one with a base offset that was appended, as all before that one were, before it.
SELECT *, coalesce(base, max(base) OVER (PARTITION BY topic, partition, generation ORDER BY there)) AS gap
FROM (
    SELECT *, IF(base IS null, appended, max(appended) OVER (
        PARTITION BY topic, partition, generation, base IS null ORDER BY base, completed, place ROWS UNBOUNDED PRECEDING
    )) AS there
    FROM generations
)

-- view shares
-- The records from one base offset to the next: a marker has one; the batches share the others by their sizes, each at least one.
-- Batches with the same base offset are one that was sent again.
SELECT *, until - gap - markers AS records, sum(weight) OVER members AS weights_up_to,
    sum(weight) OVER (PARTITION BY topic, partition, generation, gap) AS weights,
    sum(IF(weight > 0, 1, 0)) OVER (PARTITION BY topic, partition, generation, gap) AS members
FROM (
    SELECT *, IF(is_marker OR (base IS NOT null AND number > 1), 0, greatest(1, size - {header})) AS weight,
        coalesce(max(next) OVER (PARTITION BY topic, partition, generation, gap), IF(generation = last_generation, end_offset, null)) AS until
    FROM (
        SELECT *, NULLIF(lead(gap) OVER (PARTITION BY topic, partition, generation ORDER BY gap), gap) AS next,
            row_number() OVER (PARTITION BY topic, partition, generation, gap ORDER BY is_marker, base IS null, completed, place) AS number,
            sum(IF(is_marker, 1, 0)) OVER (PARTITION BY topic, partition, generation, gap) AS markers,
            max(generation) OVER (PARTITION BY topic, partition) AS last_generation
        FROM gaps
    ) LEFT JOIN ends USING (topic, partition)
)
WINDOW members AS (PARTITION BY topic, partition, generation, gap ORDER BY is_marker, base IS null, completed, place)

-- view produced
SELECT at_ns, completed, place, 'produce' AS op, client, topic, partition, size, acks, transactional, transactional_id,
    CASE
        WHEN gap IS null OR records < greatest(1, members) THEN null
        WHEN base IS null THEN share
        ELSE first_value(share) OVER (PARTITION BY topic, partition, generation, gap ORDER BY base IS null, completed, place)
    END AS known
FROM (
    SELECT *, 1 + (records - members) * weights_up_to DIV weights - (records - members) * (weights_up_to - weight) DIV weights AS share
    FROM shares WHERE NOT is_marker
)

-- view fetches
-- The next fetch of the same connection and partition begins where this one ended.
SELECT at_ns, completed, place, 'fetch' AS op, client, topic, partition, size, min_bytes, max_wait_ms, max_bytes, read_committed, offset,
    behind,
    CASE WHEN size = 0 THEN 0 WHEN next - offset BETWEEN 1 AND behind THEN next - offset END AS known
FROM (
    SELECT *, IF(offset IS null OR end_offset IS null, null, greatest(0, end_offset - offset)) AS behind,
        IF(is_first, null, lead(named) OVER (PARTITION BY connection, topic, partition, is_first ORDER BY completed, place)) AS next
    FROM (SELECT *, coalesce(name, key) AS topic FROM fetched LEFT JOIN names USING (key) WHERE key IS NOT null)
)
WHERE is_first OR size > 0

-- view counted
SELECT at_ns, completed, place, op, client, topic, partition, size, known, acks, transactional, transactional_id, null AS min_bytes,
    null AS max_wait_ms, null AS max_bytes, null AS read_committed, null AS offset, null AS behind
FROM produced
UNION ALL
SELECT at_ns, completed, place, op, client, topic, partition, size, known, null, null, null, min_bytes, max_wait_ms, max_bytes,
    read_committed, offset, behind
FROM fetches

-- view means
-- The mean size of a record, where it is known: of a partition, a topic, all.
SELECT op, topic, partition, sum(IF(op = 'fetch', size, greatest(1, size - {header}))) / sum(known) AS mean
FROM counted WHERE known > 0 AND size > 0
GROUP BY GROUPING SETS ((op, topic, partition), (op, topic), (topic), ())

-- view rows
SELECT at_ns, completed, place, op, client, topic, partition, acks, transactional, transactional_id, null AS `group`, min_bytes,
    max_wait_ms, max_bytes, read_committed, offset, behind, size AS bytes, known IS null AS is_estimated,
    coalesce(
        known,
        greatest(1, bround((size - IF(op = 'fetch', 0, {header})) / coalesce(own.mean, of_op.mean, of_topic.mean, of_all.mean, {record})))
    ) AS records
FROM counted
LEFT JOIN (SELECT * FROM means WHERE partition IS NOT null) AS own USING (op, topic, partition)
LEFT JOIN (SELECT op, topic, mean FROM means WHERE partition IS null AND op IS NOT null) AS of_op USING (op, topic)
LEFT JOIN (SELECT topic, mean FROM means WHERE op IS null AND topic IS NOT null) AS of_topic USING (topic)
CROSS JOIN (SELECT max(mean) AS mean FROM means WHERE topic IS null) AS of_all
UNION ALL
SELECT at_ns, completed, place, op, client, topic, partition, null, null, transactional_id, `group`, null, null, null, null, null, null, 0, false, 0
FROM transactions
