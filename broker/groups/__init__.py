"""Consumer groups: the coordinator, and the offsets that it keeps in `__consumer_offsets` (CLI-2)."""
