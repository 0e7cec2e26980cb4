"""The load: what one task of a replay sends, over connections of its own, and what it measures. No Spark is needed."""
