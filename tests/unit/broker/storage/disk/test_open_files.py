"""Unused log files are closed, never too many in one turn of the loop."""

from __future__ import annotations

from broker.storage.disk.open_files import CLOSED_AT_ONCE, IDLE_CHECK_TICKS, OpenFiles


class File:
    def __init__(self, files: OpenFiles) -> None:
        self.files = files
        self.is_used = True
        files.add(self)

    @property
    def can_rest(self) -> bool:
        return True

    def rest(self) -> bool:
        self.files.discard(self)
        return True


def test_a_file_that_is_used_between_two_checks_stays_open() -> None:
    files = OpenFiles()
    busy, idle = File(files), File(files)
    for _ in range(IDLE_CHECK_TICKS):
        files.tick()
    assert len(files) == 2
    for _ in range(IDLE_CHECK_TICKS):
        busy.is_used = True
        files.tick()
    assert len(files) == 1
    assert idle.files is files


def test_many_idle_files_are_closed_in_several_ticks() -> None:
    files = OpenFiles()
    made = [File(files) for _ in range(3 * CLOSED_AT_ONCE)]
    for _ in range(2 * IDLE_CHECK_TICKS):
        files.tick()
    assert len(files) == 2 * CLOSED_AT_ONCE
    made[0].is_used = True
    files.tick()
    files.tick()
    assert len(files) == 1
