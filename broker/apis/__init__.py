"""One file for each API that clients call; `table` maps API keys to handlers."""
