"""The new kind of consumer group (KIP-848): the broker assigns partitions, and members hear of it by their heartbeats."""
