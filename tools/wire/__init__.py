"""A Kafka client for the tools: connections, TLS and SASL, frames, and who leads which partition."""
