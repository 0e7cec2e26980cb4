"""The C program `generator.c`: compiled where it is used, kept for the user, run with a plan."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.bench.closed_loop.measurement import Measurement, OnProgress, Progress, silent
from tools.bench.closed_loop.request_plan import LoadFailed, Plan
from tools.user_cache import user_cache

SOURCE = Path(__file__).with_name("generator.c")
FLAGS = ("-O2", "-std=gnu11")


class NotCompiled(Exception):
    """There is no C program; the text says why, and starts in the middle of a line."""


def compiled_program(source: Path = SOURCE) -> Path:
    """The program of exactly this source, from the user's cache, where it is put first if it is not there.

    Raises NotCompiled.
    """
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    try:
        program = user_cache() / f"{source.stem}-{digest[:16]}"
        if not program.exists():
            _compile(source, program)
    except OSError as problem:
        raise NotCompiled(f"the user's cache cannot be used: {problem}") from None
    return program


def run(plan: Plan, program: Path, on_progress: OnProgress = silent) -> Measurement:
    """Runs the plan in a process that ends with this one. Raises LoadFailed."""
    with tempfile.TemporaryFile(prefix="ottla-load-") as plan_file:
        plan_file.write(plan.encoded())
        plan_file.seek(0)
        with subprocess.Popen([program], stdin=plan_file, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    said = json.loads(line)
                    if "failure" in said:
                        raise LoadFailed(said["failure"], said["connection"], said["number"])
                    if "second" not in said:
                        return Measurement(**said)
                    on_progress(Progress(said["second"], said["requests"], said["records"], said["bytes"]))
            finally:
                process.kill()
    raise LoadFailed("killed", -1, 0)


def _compile(source: Path, program: Path) -> None:
    """Raises NotCompiled, OSError."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise NotCompiled("there is no C compiler (cc)")
    handle, unfinished = tempfile.mkstemp(dir=program.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *FLAGS, "-o", unfinished, str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotCompiled(f"{compiler} fails: {(done.stderr.splitlines() or ['it says nothing'])[0]}")
        os.replace(unfinished, program)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
