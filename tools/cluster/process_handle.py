"""A handle on one process. It never means another process, even after the pid is reused, because it is a pidfd (Linux 5.3 and newer).

Where there is no pidfd, the handle has only the pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal


class ProcessHandle:
    """The process that has the pid now. First make the handle, then check which process it is: signals go to that process."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is no such process."""
        self.pid = pid
        self._fd = -1
        if hasattr(os, "pidfd_open"):
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except OSError:  # an old kernel, or a container that forbids the call
                self._fd = -1

    def send(self, number: signal.Signals) -> bool:
        """Returns False if the process has ended."""
        try:
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def is_over(self) -> bool | None:
        """Whether it has ended, even if its exit code was not fetched. None if that is unknown."""
        if self._fd < 0:
            return None
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        self.close()
