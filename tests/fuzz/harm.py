"""Checks whether an input does harm."""

from __future__ import annotations

import gc
import hashlib
import sys
import time
import traceback
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.fuzz.decoder import Decoder

ROOT = str(Path(__file__).resolve().parents[2])
TRIES = 4
"""A busy machine slows some tries down, but not all."""


class Harm(NamedTuple):
    """`kind` is the same for inputs that fail in the same way."""

    kind: str
    text: str

    @property
    def slug(self) -> str:
        return hashlib.sha1(self.kind.encode()).hexdigest()[:10]


def of(decoder: Decoder, data: bytes) -> tuple[Harm | None, bool]:
    """(what is wrong, whether the decoder took the bytes). Time is looked at, memory and lines are not."""
    began = time.perf_counter()
    is_taken, harm = _once(decoder, data)
    if harm is None and (time.perf_counter() - began) * 1000 > allowed_ms(decoder, len(data)):
        harm = too_slow(decoder, data)
    return harm, is_taken


def _once(decoder: Decoder, data: bytes) -> tuple[bool, Harm | None]:
    try:
        decoder.run(data)
    except decoder.refuses:
        return False, None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return False, _raised(error)
    return True, None


def _raised(error: BaseException) -> Harm:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{f.filename.removeprefix(ROOT)}:{f.lineno}" for f in frames if f.filename.startswith(ROOT)]
    kind = f"{type(error).__name__} at {' < '.join(reversed(own[-2:]))}"
    if isinstance(error, RecursionError):
        kind = "RecursionError"
    return Harm(kind, "".join(traceback.format_exception(error, limit=-12)))


def allowed_ms(decoder: Decoder, size: int) -> float:
    return decoder.cpu_ms + decoder.cpu_us_per_byte * size / 1000


def too_slow(decoder: Decoder, data: bytes) -> Harm | None:
    """CPU time: the least of several tries."""
    allowed = allowed_ms(decoder, len(data))
    spent = cpu_ms(decoder, data)
    if spent <= allowed:
        return None
    return Harm(
        f"time of {decoder.name}", f"{len(data)} bytes took {spent:.1f} ms of the processor, allowed are {allowed:.1f}"
    )


def cpu_ms(decoder: Decoder, data: bytes) -> float:
    least = float("inf")
    for _ in range(TRIES):
        began = time.thread_time()
        _once(decoder, data)
        least = min(least, (time.thread_time() - began) * 1000)
    return least


def too_large(decoder: Decoder, data: bytes) -> Harm | None:
    """Peak of the memory that Python allocated. The first try fills caches and does not count."""
    allowed = decoder.memory + decoder.memory_per_byte * len(data)
    _once(decoder, data)
    gc.collect(0)
    tracemalloc.start()
    try:
        _once(decoder, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak <= allowed:
        return None
    return Harm(f"memory of {decoder.name}", f"{len(data)} bytes took {peak} bytes of memory, allowed are {allowed}")


def too_long(decoder: Decoder, data: bytes) -> Harm | None:
    """Number of lines of Python that run."""
    allowed = decoder.lines + decoder.lines_per_byte * len(data)
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        _once(decoder, data)
    finally:
        sys.settrace(before)
    if count <= allowed:
        return None
    return Harm(f"lines of {decoder.name}", f"{len(data)} bytes made {count} lines run, allowed are {allowed}")
