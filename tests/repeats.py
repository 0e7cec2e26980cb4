"""Is a test that failed flaky? A thorough run repeats it alone, five times, one after the other.

If all five pass, the test is flaky: the run passes, and its last lines name the test, its seed and where the output is kept.
Otherwise the run fails, and no other test is repeated. All repetitions of a run together have `SECONDS_MAX`. If that time ends
first, as it does for tests that take minutes, two that passed are enough.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TIMES = 5
TIMES_OF_LONG_TESTS = 2
SECONDS_MAX = 600
SEED = re.compile(r"\bseed[ =(:]+(\d+)", re.IGNORECASE)
"""As hypothesis prints it (`@seed(7)`, `--hypothesis-seed=7`), and the chaos tests (`seed 7`)."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of a test that was repeated."""

    test: str
    passed: int
    is_out_of_time: bool = False

    @property
    def is_flaky(self) -> bool:
        return self.passed >= (TIMES_OF_LONG_TESTS if self.is_out_of_time else TIMES)

    def __str__(self) -> str:
        if self.is_flaky:
            return f"FLAKY {self.test}: failed once, then passed {self.passed} times alone"
        if self.is_out_of_time:
            return f"FAILED {self.test}: {SECONDS_MAX} s ended after {self.passed} of {TIMES} repetitions, which passed"
        return f"FAILED {self.test}: failed again alone, after {self.passed} repetitions that passed"


def repeat(
    test: str, passes: Callable[[float], bool | None], end: float, clock: Callable[[], float] = time.monotonic
) -> Repeated:
    """Repeats a test until it fails, or the clock is at `end`.

    `passes` runs it once, for at most so many seconds, and says whether it passed; None: the time ended first.
    """
    for passed in range(TIMES):
        left = end - clock()
        result = passes(left) if left > 0 else None
        if not result:
            return Repeated(test, passed, is_out_of_time=result is None)
    return Repeated(test, TIMES)


def failed_tests(cache: Path) -> list[str]:
    """The ids of the tests that failed, from the cache directory of a pytest run."""
    try:
        return list(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def seed_of(test: str, output: str) -> str | None:
    """The seed that the test printed when it failed: in pytest's section of its failure."""
    name = ".".join(test.partition("[")[0].split("::")[1:]) + "".join(test.partition("[")[1:])
    sections = re.split(r"^_{3,} (?:ERROR at \w+ of )?(.+?) _{3,}$", output, flags=re.MULTILINE)
    for title, section in zip(sections[1::2], sections[2::2], strict=True):
        if title == name and (found := SEED.search(section)):
            return found[1]
    return None
