"""`ottla timeline`: the event logs of all brokers, merged and told as a story (OBS-1)."""
