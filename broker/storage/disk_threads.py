"""Threads for what waits for the disk, by kind, so that nothing slow takes the threads of what clients wait for.

Flushes and checkpoints run in the threads of the loop's own executor. Reads of pages that are not in memory, the cleaner and
removals have their own: deleting a topic of thousands of large files must not hold up a consumer or a flush.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

READS = ThreadPoolExecutor(4, "log-read")
CLEANING = ThreadPoolExecutor(1, "log-clean")
REMOVALS = ThreadPoolExecutor(1, "log-remove")
"""A thread of each is started when it is first needed."""
