"""The formats that processes share: Kafka's wire format, the control RPC, ZooKeeper's paths and JSON, error codes.

It also has rules that several packages apply alike: which names and ids are legal, where replicas are placed (by the broker for new
topics, by `ottla reassign` for its plans), and when a process counts as dead (for the controller, and for brokers about each other).
"""
