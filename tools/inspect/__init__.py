"""Inspects a cluster: ZooKeeper, brokers and disks."""
