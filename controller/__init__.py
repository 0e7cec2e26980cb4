"""The elected controller (CTL-1..16): decides leadership, persists it in ZooKeeper, announces it to the brokers.

`decisions/` is pure: it computes what to do from the cluster's state. Each module of `reactions/` handles one kind of event: it asks
`decisions/`, persists, applies and announces. The singular decides and the plural reacts: `reassignment` and `reassignments`,
`topic_deletion` and `topic_deletions`, `leader_election` and `leader_elections`. `controller_election` elects the controller itself.
"""
