"""A decoder under test, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """`run` takes any bytes. It raises only `refuses`, and AssertionError if it decoded the bytes wrongly.

    An input may cost a constant and an amount for each of its bytes: CPU time, peak memory, and lines of Python that run (which do
    not depend on other processes). These limits are several times what honest inputs need. The fuzzer looks for costs that grow
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
    """Raises AssertionError, also in a block that catches `refuses`."""
    if not is_so:
        raise AssertionError(str(what))
