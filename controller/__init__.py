"""The elected controller (CTL-1..15): decides leadership, persists it in ZooKeeper, announces it to the brokers.

`decisions/` is pure: what to do, from what is known. `reactions/` handles one kind of event each: it asks `decisions/`, persists,
applies and announces. `reassignment` decides and `reassignments` reacts; so for `topic_deletion` and `topic_deletions`, and for
`leader_election` and `leader_elections`. `controller_election` elects the controller itself.
"""
