"""Compaction of logs with `cleanup.policy=compact`."""
