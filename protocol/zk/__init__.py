"""ZooKeeper as Kafka uses it (FMT-2): paths and JSON in `znodes`, the async gateway in `session`."""
