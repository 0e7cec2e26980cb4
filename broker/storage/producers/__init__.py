"""Idempotence: the state of producers, a function of the log that is cut with it and kept beside it."""
