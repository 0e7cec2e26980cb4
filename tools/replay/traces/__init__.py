"""Traces: what they are, how they are read and written, and where they come from. No cluster and no Spark is needed."""
