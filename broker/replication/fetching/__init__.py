"""The leader's side of a fetch: sessions, reads, parked fetches, partitions that rest."""
