"""Consumer groups (CLI-2): the coordinator and its parts. `docs/GROUPS.md` explains the protocol.

`group/` is one group as a pure state machine. `offsets_topic/` is the topic in which groups and offsets are stored. `coordinator`
joins the two: `held_groups` has the groups in memory, `effects` carries out what they ask for, `timers` watches their deadlines.
"""
