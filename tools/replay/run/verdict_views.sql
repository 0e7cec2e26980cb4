-- The views from which the verdict is counted. Each starts with its name; later ones use earlier ones.

-- view stored
SELECT producer, first_sequence, records, topic, partition, offset, client, acks, transaction, key_size, keys FROM operations
WHERE op = 'produce' AND error IS NULL AND acks <> 0 AND records > 0

-- view ends
SELECT producer, transaction, op FROM operations WHERE op IN ('commit', 'abort') AND error IS NULL

-- view acknowledged
-- A batch is one interval of its producer's sequence. A batch of a transaction is acknowledged by the commit.
SELECT * FROM stored WHERE transaction IS NULL
UNION ALL
SELECT s.* FROM stored s LEFT SEMI JOIN ends e ON s.producer = e.producer AND s.transaction = e.transaction AND e.op = 'commit'
WHERE s.transaction IS NOT NULL

-- view aborted
SELECT s.* FROM stored s LEFT SEMI JOIN ends e ON s.producer = e.producer AND s.transaction = e.transaction AND e.op = 'abort'
WHERE s.transaction IS NOT NULL

-- view left_open
-- Nobody owes the records of a transaction that the trace does not end, or whose end has failed.
SELECT s.* FROM stored s LEFT ANTI JOIN ends e ON s.producer = e.producer AND s.transaction = e.transaction
WHERE s.transaction IS NOT NULL

-- view read_aborted
-- Batches of aborted transactions that readers of committed records got: `reached` is how far those have read that began before its end.
-- Or would get: they are visible in the end.
SELECT r.topic, r.partition, r.offset, r.records, r.producer FROM found r LEFT SEMI JOIN aborted a
    ON r.producer = a.producer AND r.first_sequence = a.first_sequence AND r.kind = 'intact'
UNION
SELECT topic, partition, offset, records, producer FROM (
    SELECT *, max(stop) OVER (
        PARTITION BY topic, partition ORDER BY at, offset NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS reached
    FROM (
        SELECT topic, partition, offset + records - 1 AS at, NULL AS stop, offset, records, producer
        FROM aborted WHERE offset IS NOT NULL
        UNION ALL
        SELECT read.topic, read.partition, read.begin, read.stop, NULL, NULL, NULL
        FROM (SELECT explode(reads) AS read FROM operations WHERE read_committed AND error IS NULL)
    )
) WHERE reached > offset

-- view producers
-- A producer has one acks. Without acks=all, it accepts that a failure loses, doubles or reorders its batches.
SELECT producer, min(acks) AS acks FROM operations WHERE op = 'produce' GROUP BY producer

-- view runs
SELECT * FROM found WHERE kind = 'intact'

-- view unsettled
-- Batches that were found whole are settled by one join. Only the others are looked at record by record.
SELECT a.* FROM acknowledged a LEFT ANTI JOIN runs r
    ON a.producer = r.producer AND a.first_sequence = r.first_sequence AND a.records = r.records

-- view missing
-- `base` is the offset of the record's batch; both offsets are null if it is not known. `keys` is one for all records, or one for each.
SELECT u.producer, u.sequence, u.topic, u.partition, u.base, u.base + u.sequence - u.first_sequence AS offset, u.client, u.acks, u.key_size,
    get(u.keys, CAST(IF(size(u.keys) = 1, 0, u.sequence - u.first_sequence) AS INT)) AS hash
FROM (
    SELECT producer, explode(sequence(first_sequence, first_sequence + records - 1)) AS sequence,
        topic, partition, IF(offset < 0, NULL, offset) AS base, first_sequence, client, acks, key_size, keys
    FROM unsettled
) u LEFT ANTI JOIN (
    SELECT r.producer, explode(sequence(r.first_sequence, r.first_sequence + r.records - 1)) AS sequence
    FROM runs r JOIN (SELECT DISTINCT producer FROM unsettled) p ON r.producer = p.producer
) f ON u.producer = f.producer AND u.sequence = f.sequence

-- view gaps
SELECT topic, partition, offset AS begin, offset + coalesce(records, shiftleft(1L, 62)) AS stop, kind FROM found
WHERE kind IN ('unread', 'deleted')

-- view excuses
-- Missing records that are not counted as lost: their offset, or that of their batch, could not be read or was deleted; of records
-- whose offset is not known, any offset of their partition. A batch is read in the range in which it starts.
SELECT m.producer, m.sequence, max(g.kind) AS kind FROM missing m JOIN gaps g
    ON m.topic = g.topic AND m.partition = g.partition AND (
        m.offset IS NULL OR (m.offset >= g.begin AND m.offset < g.stop)
        OR (m.base >= g.begin AND m.base < g.stop)
    )
GROUP BY m.producer, m.sequence

-- view absent
SELECT m.* FROM missing m LEFT ANTI JOIN excuses e ON m.producer = e.producer AND m.sequence = e.sequence

-- view newest
-- The newest record of each key in the compacted topics: its first 8 bytes are the hash, of which a shorter key has the low bytes.
SELECT topic, partition, key_size, key, max(offset) AS offset FROM found WHERE kind = 'newest' GROUP BY topic, partition, key_size, key

-- view unreplaced
-- Compaction may remove any record but the newest of its key.
SELECT k.* FROM (
    SELECT a.*, IF(key_size < 8, hash & (shiftleft(1L, 8 * key_size) - 1), hash) AS key
    FROM absent a LEFT SEMI JOIN compacted_topics c ON a.topic = c.topic WHERE hash IS NOT NULL
) k
LEFT ANTI JOIN newest n ON k.topic = n.topic AND k.partition = n.partition AND k.key_size = n.key_size AND k.key = n.key
    AND n.offset > coalesce(k.offset, -1)

-- view unknown
-- What could not be read, or was deleted before it was read, may have been a newer record of the key.
SELECT u.producer, u.sequence, max(g.kind) AS kind FROM unreplaced u JOIN gaps g
    ON u.topic = g.topic AND u.partition = g.partition AND g.stop > coalesce(u.offset, -1)
GROUP BY u.producer, u.sequence

-- view outdated
SELECT u.* FROM unreplaced u LEFT ANTI JOIN unknown k ON u.producer = k.producer AND u.sequence = k.sequence

-- view lost
SELECT producer, sequence, topic, partition, base, offset, client, acks FROM (
    SELECT a.* FROM absent a LEFT ANTI JOIN compacted_topics c ON a.topic = c.topic
)
UNION ALL
SELECT producer, sequence, topic, partition, base, offset, client, acks FROM outdated

-- view copies
SELECT c.*, coalesce(p.acks, -1) AS acks FROM (
    SELECT producer, first_sequence, max(records) AS records, count(*) AS copies,
        sort_array(collect_list(struct(topic, partition, offset))) AS places
    FROM runs GROUP BY producer, first_sequence HAVING count(*) > 1
) c LEFT JOIN producers p ON c.producer = p.producer

-- view steps_back
-- A second copy of a batch counts as duplicated, and not as reordered too.
SELECT s.*, coalesce(p.acks, -1) AS acks FROM (
    SELECT producer, topic, partition, offset, first_sequence,
        max(first_sequence) OVER (
            PARTITION BY producer, topic, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before
    FROM (
        SELECT producer, topic, partition, first_sequence, min(offset) AS offset FROM runs
        GROUP BY producer, topic, partition, first_sequence
    )
) s LEFT JOIN producers p ON s.producer = p.producer WHERE s.first_sequence < s.before

-- view elsewhere
SELECT a.producer, a.first_sequence, a.topic, a.partition, a.offset AS acknowledged_offset,
    r.place.topic AS found_topic, r.place.partition AS found_partition, r.place.offset
FROM acknowledged a JOIN (
    SELECT producer, first_sequence, min(struct(topic, partition, offset)) AS place FROM runs
    GROUP BY producer, first_sequence HAVING count(*) = 1
) r ON a.producer = r.producer AND a.first_sequence = r.first_sequence
WHERE a.offset <> r.place.offset OR a.topic <> r.place.topic OR a.partition <> r.place.partition
