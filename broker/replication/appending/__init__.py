"""Produce: appends batches as the leader, and parks producers that wait for replication."""
