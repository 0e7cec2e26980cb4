"""Breaks single requests of clients, by rules that the owner of the process gives (`protocol/conversation`, docs/FAULTS.md)."""
