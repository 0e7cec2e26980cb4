"""The parts that any server process needs: clock, log files, metrics, loop watchdog, descriptors, memory, an orderly stop."""
