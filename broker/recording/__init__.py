"""Records sizes and times of clients' requests, for `ottla replay record` (RPL-5)."""
