"""Consumer groups (CLI-2): the coordinator, and what it works with. `docs/GROUPS.md` explains the protocol.

`group/` is one group as a pure state machine, `offsets_topic/` the topic that groups and offsets are stored in, `coordinator`
joins the two. `held_groups` are the groups in memory, `effects` what a group wants done, `timers` their deadlines.
"""
