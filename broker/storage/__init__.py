"""Logs on disk in Kafka's format (FMT-3, LOG-1..6). Nothing here depends on sockets, replication or ZooKeeper."""
