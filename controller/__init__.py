"""The elected controller (CTL-1..15): decides leadership, persists it in ZooKeeper, announces it to the brokers."""
