"""The command `ottla` and what it does: clusters on this machine, administration, load replay."""
