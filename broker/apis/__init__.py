"""One file for each API that clients call; `table` says which serves what."""
