"""A decoder under test, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """`run` takes any bytes; it raises nothing but `refuses`, and AssertionError when what it decoded is not right.

    An input may cost a constant and as much for each of its bytes: of the processor's time, of memory at its peak, and of lines of
    Python that run, which no other process makes more. They are some times what honest inputs need: what is looked for grows
    faster than the input.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    refuses: tuple[type[BaseException], ...] = ()
    bytes_max: int = 1024
    cpu_ms: float = 10.0
    cpu_us_per_byte: float = 10.0
    memory: int = 1 << 20
    memory_per_byte: int = 400
    lines: int = 3000
    lines_per_byte: int = 300
    is_instrumented: bool = True
    """False: it runs as fast as in a broker, and its coverage is not recorded."""
    is_slow: bool = False
    """It takes more than 0.2 ms for an input, so it gets a smaller share of the time."""


def must(is_so: bool, what: object) -> None:
    """Raises AssertionError, also where an exception is looked at."""
    if not is_so:
        raise AssertionError(str(what))
