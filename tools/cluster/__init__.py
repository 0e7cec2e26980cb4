"""A cluster on this machine: ZooKeeper and broker processes in a run directory (RUN-1, RUN-2)."""
