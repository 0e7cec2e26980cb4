"""Administration of any Kafka-compatible cluster through the public protocol."""
