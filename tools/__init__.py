"""The command `ottla`: clusters on this machine, administration, load replay."""
