"""Clients of the simulated cluster: each is a process of its own, and reports what it was told."""
