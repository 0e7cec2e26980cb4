"""`ottla bench controller`: a controller with a real ZooKeeper, and brokers that only acknowledge."""
