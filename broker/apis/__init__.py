"""One module for each API that clients call; `table` maps API keys to handlers."""
