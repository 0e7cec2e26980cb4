"""Kafka's `group.protocol`: the two ways in which members and coordinator of a consumer group agree on who reads what."""

from __future__ import annotations

GROUP_PROTOCOLS = CLASSIC, CONSUMER = "classic", "consumer"
"""CONSUMER is that of KIP-848."""
