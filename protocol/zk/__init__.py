"""ZooKeeper as Kafka uses it (FMT-2): `znodes` has the paths and JSON, `session` is the async client."""
