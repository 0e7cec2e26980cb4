"""Logs on disk in Kafka's format (FMT-3, LOG-1..3); nothing here knows of leaders, requests or ZooKeeper."""
