"""Looking into a cluster from several sides at once."""
