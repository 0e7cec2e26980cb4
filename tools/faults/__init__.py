"""Faults on purpose: who has a role, what is done to its process, when, under which load, and what became of the records."""
