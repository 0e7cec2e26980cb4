"""Replaces several segments by a compacted one, safely at every point of a crash or power loss (LOG-4, FLT-24).

    1. the new segment is written and synced as <base>.log.cleaned, .index.cleaned, .timeindex.cleaned
    2. its files are renamed to .swap, the log file last: from here on the new segment counts, even after a crash
    3. the old segments' files are renamed to .deleted
    4. the suffix .swap is removed from the new segment's files
    5. the directory is synced, and a thread removes the .deleted files

`finish_swaps` completes an interrupted swap when a log is opened: before step 2 the new files are dropped, after it the old
ones. It also completes a swap that Kafka left unfinished (Kafka 3.9's LogLoader).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from broker.storage.disk.filesystem import FileSystem
from broker.storage.segment import Segment, segment_name

log = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
KINDS = (".index", ".timeindex", ".txnindex", ".log")

_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.swap)?")


def remove_cleaned(filesystem: FileSystem, directory: str, base_offset: int) -> None:
    """Removes the files that an earlier attempt may have left. Raises OSError."""
    for kind in KINDS:
        filesystem.remove(f"{directory}/{segment_name(base_offset)}{kind}{CLEANED_SUFFIX}")


def swap_files(cleaned: Segment, sources: Sequence[Segment]) -> list[str]:
    """Steps 2 to 4, on the loop, so that no reader sees them half done. Returns the paths to remove."""
    cleaned.rename(SWAP_SUFFIX)
    removed = [path for source in sources for path in source.remove()]
    cleaned.rename("")
    return removed


def finish_swaps(filesystem: FileSystem, directory: str, index_interval_bytes: int) -> list[str]:
    """Completes interrupted swaps, before anything else in a log's directory is read. Returns all file names. Raises OSError."""
    names = filesystem.list(directory)
    if not any(name.endswith(SWAP_SUFFIX) for name in names):
        return names
    found: dict[str, set[int]] = {}
    for name in names:
        match = _FILE.fullmatch(name)
        if match:
            key = match[3] if match[3] == CLEANED_SUFFIX else match[2] + (match[3] or "")
            found.setdefault(key, set()).add(int(match[1]))
    # Kafka renames the log file first, and of several new segments the last: while one of their files is still .cleaned, the old
    # segments all exist, and count. But a .cleaned file may also be of another attempt, which gave up.
    first_cleaned = min(found.get(CLEANED_SUFFIX, ()), default=None)
    for base in sorted(found.get(".log" + SWAP_SUFFIX, ())):
        bases = found.get(".log", set())
        if first_cleaned is None or base < first_cleaned or not _is_covered(filesystem, directory, base, bases):
            _finish(filesystem, directory, base, bases, index_interval_bytes)
    return filesystem.list(directory)


def _is_covered(filesystem: FileSystem, directory: str, base: int, bases: set[int]) -> bool:
    """Whether an old segment still has the records that the swap at `base` starts with. The first old segment is the first to go."""
    if base in bases:
        return True
    before = max((old_base for old_base in bases if old_base < base), default=None)
    if before is None:
        return False
    segment = Segment(filesystem, directory, before, index_interval_bytes=0, created_ms=0)
    try:
        return any(header.next_offset > base for _, header in segment.headers())
    finally:
        segment.close()


def _finish(filesystem: FileSystem, directory: str, base: int, bases: set[int], index_interval_bytes: int) -> None:
    stem = f"{directory}/{segment_name(base)}"
    swapped = Segment(
        filesystem, directory, base, index_interval_bytes=index_interval_bytes, created_ms=0, suffix=SWAP_SUFFIX
    )
    end = base
    for _, header in swapped.headers():
        end = header.next_offset
    swapped.close()
    # If no record of the last old segments was kept, `end` does not cover them. They stay, as all their records were replaced.
    old = sorted(old_base for old_base in bases if old_base == base or base <= old_base < end)
    log.warning("%s: an interrupted swap is finished: this segment replaces %d old ones up to %d", stem, len(old), end)
    for old_base in old:
        for kind in KINDS:
            filesystem.remove(f"{directory}/{segment_name(old_base)}{kind}")
    for kind in KINDS:
        if filesystem.exists(stem + kind + SWAP_SUFFIX):
            filesystem.rename(stem + kind + SWAP_SUFFIX, stem + kind)
    filesystem.sync_directory(directory)
