"""`ottla bench compare`: our cluster and a real Kafka under the same loads, one after the other."""
