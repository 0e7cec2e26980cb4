"""A real Kafka: its jars, and clusters of its brokers on this machine. The benches and the tests compare with it."""
