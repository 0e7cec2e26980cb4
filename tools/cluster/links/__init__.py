"""Links: one process through which the brokers of a local cluster reach each other and ZooKeeper, so that each link can be broken."""
