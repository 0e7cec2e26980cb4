"""Changes of topics and settings by admins, written to ZooKeeper."""
