"""Measurements of a real cluster: load, faults and scale."""
