"""The faults of a cluster that are not healed yet, in a file, so that another process can heal them, also after SIGKILL.

A fault is written down before it happens, and struck out after it was undone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.cluster.processes import ClusterError
from tools.faults.words import FaultError, Words, parse_words
from tools.private_files import write_anew

RECORD = "unhealed.json"


@dataclass(frozen=True, slots=True)
class Noted:
    """`said`: the fault in words. `broker`: the broker that it hit; None for ZooKeeper."""

    said: str
    broker: int | None

    @property
    def words(self) -> Words:
        """Raises FaultError if somebody has changed the file."""
        return parse_words(self.said)


class FaultRecord:
    """The file. Several processes may use it. The methods raise ClusterError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[Noted]:
        """The rows, oldest first. Rows that cannot be read are left out, because `heal` also checks the processes."""
        return self._read()

    def note(self, words: Words, broker: int | None) -> Noted:
        row = Noted(str(words), broker)
        self._change(lambda rows: [*rows, row])
        return row

    def strike(self, struck: Callable[[Noted], bool]) -> None:
        self._change(lambda rows: [row for row in rows if not struck(row)])

    def brokers_with(self, role: str) -> list[int | None]:
        """The victims of the faults of this role, the latest last."""
        found = []
        for row in self._read():
            with contextlib.suppress(FaultError):
                if row.words.role == role:
                    found.append(row.broker)
        return found

    def _change(self, change: Callable[[list[Noted]], list[Noted]]) -> None:
        try:
            with self._locked():
                rows = change(self._read())
                if rows:
                    write_anew(self._path, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
                else:
                    self._path.unlink(missing_ok=True)
        except OSError as problem:
            raise ClusterError(f"{self._path} cannot be written: {problem.strerror}") from None

    def _read(self) -> list[Noted]:
        rows: Any = []
        with contextlib.suppress(OSError, ValueError, RecursionError):
            rows = json.loads(self._path.read_text())
        found = []
        for row in rows if isinstance(rows, list) else []:
            with contextlib.suppress(FaultError, KeyError, TypeError):
                noted = Noted(row["said"], row["broker"])
                if isinstance(noted.broker, int | None) and noted.words:
                    found.append(noted)
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        own = os.open(f"{self._path.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=handle)
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            yield
        finally:
            os.close(own)
            os.close(handle)


def state_directory() -> Path:
    """The directory for records of clusters without a run directory, such as those in containers."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "ottla" / "faults"
