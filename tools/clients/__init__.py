"""A first try of a topic from the shell: `ottla produce` and `ottla consume`."""
