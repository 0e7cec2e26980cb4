"""This broker in its cluster: its life in ZooKeeper, what it knows of the others, ids that it gets there."""
