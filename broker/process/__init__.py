"""What any server process needs: clock, log files, metrics, a watch on the loop, descriptors, memory, an orderly stop."""
