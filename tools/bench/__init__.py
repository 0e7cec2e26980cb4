"""Measurements: raw load against one broker."""
