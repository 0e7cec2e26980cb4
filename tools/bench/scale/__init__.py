"""`ottla bench scale`: three brokers with many partitions."""
