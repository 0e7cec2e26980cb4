"""`ottla demo`: a cluster, a year of flights as its load, a killed leader, and a consumer group that reads along."""
