"""Quotas of clients: limits, rates, and how long who is over them waits (KIP-13, KIP-124, KIP-219, KIP-599, KIP-612)."""
