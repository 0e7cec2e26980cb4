"""Who may do what: the ACLs of the cluster, as Kafka's AclAuthorizer has them in ZooKeeper mode."""
