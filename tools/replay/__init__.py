"""Replays an event stream through any Kafka-compatible cluster with Spark, and reports the measurements."""
