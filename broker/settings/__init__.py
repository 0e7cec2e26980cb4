"""The settings of a broker: typed, with their sources, and changed while it runs."""
