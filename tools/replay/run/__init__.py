"""A replay of a trace: its plan, the Spark job that carries it out, and the process that watches over it."""
