"""The topic `__consumer_offsets`: what is in it, which partitions this broker leads, how it is written and loaded."""
