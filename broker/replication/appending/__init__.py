"""Produce: what is done at once, in slices and in a thread, and who waits for acks."""
