"""Records the load of a running cluster into a trace: `ottla replay record` (RPL-5)."""
