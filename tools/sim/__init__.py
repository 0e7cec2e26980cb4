"""The brokers of this project, unchanged, in a simulated world: any failure replays from its seed (docs/SIMULATION.md).

This is the only room of `tools` that imports the broker.
"""
