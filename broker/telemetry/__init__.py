"""Metrics of clients (KIP-714): which of them a client is asked for, and what it pushes."""
