"""What the controller decides, pure: who leads, what a move or a deletion does next. `reactions/` carries it out.

`decisions.reassignment` is the arithmetic of a move, `reactions.reassignments` moves partitions; so for the other pairs.
"""
