"""What the coordinators of groups and of transactions share: a broker coordinates what is stored in the partitions that it leads."""
