"""The controller's decisions: who leads, and what a move or a deletion does next. Pure. `reactions/` carries them out.

`decisions.reassignment` computes a move, and `reactions.reassignments` makes it. The other pairs are named alike.
"""
