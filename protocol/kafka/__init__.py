"""Kafka's wire format (FMT-1)."""
