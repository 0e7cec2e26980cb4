"""Threads for what waits for the disk, or computes long, by kind, so that nothing slow takes the threads of what clients wait for.

Flushes and checkpoints run in the threads of the loop's own executor. Reads of pages that are not in memory, the cleaner and
removals have their own: deleting a topic of thousands of large files must not hold up a consumer or a flush. Large batches are
unpacked in threads of their own, which leave a processor to the loop where there are several.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

READS = ThreadPoolExecutor(4, "log-read")
CLEANING = ThreadPoolExecutor(1, "log-clean")
REMOVALS = ThreadPoolExecutor(1, "log-remove")
UNPACKING_MAX = max(1, min(4, (os.cpu_count() or 1) // 2))
"""So many large batches are unpacked at a time, and so many lie unpacked in memory."""
UNPACKING = ThreadPoolExecutor(UNPACKING_MAX, "unpack")
"""A thread of each is started when it is first needed."""
