"""The settings of a broker: typed, from their sources, and changed while it runs."""
