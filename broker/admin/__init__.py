"""Topics and settings as admins change them, written to ZooKeeper."""
