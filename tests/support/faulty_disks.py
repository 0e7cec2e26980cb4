"""Real file systems that fail: a small tmpfs that is full, and calls that fail with EIO below a directory (FLT-28, FLT-29)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CONTROL_VARIABLE = "FAILING_WRITES_CONTROL"
SOURCE = Path(__file__).with_name("failing_writes.c")


def why_no_mounts(directory: Path) -> str | None:
    """The reason why this machine cannot mount a small file system, None when it can."""
    if os.geteuid() != 0:
        return "DISK FAULTS NOT TESTED: mounting a small tmpfs needs root"
    try:
        with small_volume(directory / "try", size_bytes=1 << 20):
            return None
    except subprocess.CalledProcessError as error:
        return f"DISK FAULTS NOT TESTED: no tmpfs can be mounted here: {error.stderr.strip()}"


@contextlib.contextmanager
def small_volume(path: Path, *, size_bytes: int) -> Iterator[Path]:
    """A tmpfs at `path`, gone at the end with all that is in it."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    subprocess.run(mount, capture_output=True, text=True, check=True)
    try:
        yield path
    finally:
        # Lazily: a broker that a failed test left may still have files open there.
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)


class FailingCalls:
    """A library for LD_PRELOAD, and the control file that says what fails now."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "failing_writes.so"
        self.control = directory / "failing_writes.control"

    def why_not(self) -> str | None:
        """Compiles the library. The reason why that is not possible, None when it is there."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return "DISK FAULTS NOT TESTED: there is no C compiler for the LD_PRELOAD library"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self.library), str(SOURCE), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"DISK FAULTS NOT TESTED: {compiler} failed: {made.stderr.strip()[:300]}" if made.returncode else None

    @property
    def environment(self) -> dict[str, str]:
        """For the processes whose calls are to fail."""
        return {"LD_PRELOAD": str(self.library), CONTROL_VARIABLE: str(self.control)}

    def begin(self, what: str, below: Path) -> None:
        """`what`: write, fsync or read, or hold, with which fsync does not return; of all files below that directory."""
        temporary = self.control.with_suffix(".new")
        temporary.write_text(f"{what} {below}")
        temporary.replace(self.control)

    def end(self) -> None:
        self.control.unlink(missing_ok=True)
