"""This broker in its cluster: its registration in ZooKeeper, its knowledge of the others, its producer ids."""
