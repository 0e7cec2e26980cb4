"""What a process needs of a machine, simulated: time, an event loop, a network, a disk, ZooKeeper. A seed decides what is left open."""
