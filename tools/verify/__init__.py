"""A verdict on a client during faults: what it reports, compared with what the logs hold in the end."""
