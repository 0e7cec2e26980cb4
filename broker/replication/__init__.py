"""Replication of one broker: leaders, followers, in-sync replicas, the high watermark."""
