"""Producing and consuming in the shell: `ottla produce` and `ottla consume`."""
