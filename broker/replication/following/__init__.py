"""The follower's side of replication: fetchers that copy partitions from their leaders, and truncate diverging logs."""
