"""The files of recordings, in a log directory. All of this blocks: it runs in one thread, in order.

A file is `recording-<id>-<number>.rows`. It is a plain file and no directory, because Kafka refuses to start with a directory that is
not a partition's. A broker that starts while a recording is on continues in a further file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from broker.storage.disk.filesystem import FileSystem
from protocol.recording import Counts, Header, entries_frame, header_frame

NAME = re.compile(r"recording-(?P<id>[A-Za-z0-9_-]{1,64})-(?P<number>[1-9][0-9]{0,5})\.rows")
FREE_MIN = 256 * 1024 * 1024
"""Bytes that a recording leaves free on its volume: it must not take a log directory offline."""
LAST_FRAME_SIZE = 1024
"""Room in the file for the final counts."""


class FileView(NamedTuple):
    name: str
    size: int


def files_in(filesystem: FileSystem, directory: str, recording: str | None = None) -> list[FileView]:
    """The files of one recording, or of all, in the order in which they were written. Raises OSError."""
    found = []
    for name in filesystem.list(directory):
        matched = NAME.fullmatch(name)
        if matched is not None and recording in (None, matched["id"]):
            size = filesystem.size_of(f"{directory}/{name}")
            found.append((matched["id"], int(matched["number"]), FileView(name, size)))
    return [view for _, _, view in sorted(found)]


def remove_others(filesystem: FileSystem, directory: str, recording: str) -> None:
    """Removes the files of all recordings except this one; "" removes all. Raises OSError."""
    for view in files_in(filesystem, directory):
        matched = NAME.fullmatch(view.name)
        if matched is None or matched["id"] != recording:
            filesystem.remove(f"{directory}/{view.name}")


class RecordingFile:
    """The file that is being written. Its size and those of the recording's earlier files together are at most `max_bytes`."""

    def __init__(self, filesystem: FileSystem, directory: str, header: Header, max_bytes: int) -> None:
        """Creates it. Raises OSError."""
        earlier = files_in(filesystem, directory, header.recording)
        numbers = [int(matched["number"]) for view in earlier if (matched := NAME.fullmatch(view.name))]
        self.name = f"recording-{header.recording}-{max(numbers, default=0) + 1}.rows"
        self.size = 0
        self.why_full = ""
        self._dropped = 0
        self._filesystem = filesystem
        self._directory = directory
        self._size_max = max_bytes - sum(view.size for view in earlier)
        self._fd = filesystem.create(f"{directory}/{self.name}")
        self._write(header_frame(header))

    def append(self, frames: bytes, requests: int) -> bool:
        """False if the frames do not fit, or cannot be written; `why_full` then says why. Nothing is written after that."""
        if self.why_full:
            self._dropped += requests
            return False
        try:
            if self.size + len(frames) + LAST_FRAME_SIZE > self._size_max:
                self.why_full = "recorder.max.bytes is reached"
            elif self._filesystem.space(self._directory)[1] - len(frames) < FREE_MIN:
                self.why_full = f"the disk has less than {FREE_MIN // 1024**2} MiB free"
            else:
                self._write(frames)
        except OSError as error:
            self.why_full = f"the file cannot be written: {error.strerror or error}"
        self._dropped += requests if self.why_full else 0
        return not self.why_full

    def close(self, counts: Counts) -> None:
        """Writes the final counts, with what did not fit. Raises OSError."""
        try:
            self._write(entries_frame(counts._replace(dropped=counts.dropped + self._dropped), ()))
        finally:
            self._filesystem.close(self._fd)

    def _write(self, frame: bytes) -> None:
        self._filesystem.write(self._fd, (frame,), self.size)
        self.size += len(frame)
