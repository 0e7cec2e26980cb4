"""What two processes must agree on: Kafka's wire format, the control RPC, ZooKeeper's paths and JSON, error codes.

Also rules that two packages apply alike: which names and ids are legal, where replicas are placed (the broker for new topics,
`ottla reassign` for its plans), when a process counts as dead (the controller, and brokers for each other).
"""
