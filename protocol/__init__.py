"""What two processes must agree on: Kafka's wire format, the control RPC, ZooKeeper's paths and JSON, error codes."""
