"""Finds out whether a process still listens at an address, for the controller and for brokers (CTL-16)."""
