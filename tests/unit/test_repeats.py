"""`tests/repeats.py`: when a failure is flaky; `tests/versions.py`: what a run was made with."""

from __future__ import annotations

import sys

import pytest

from tests.repeats import SECONDS_MAX, TIMES, repeat, seed_of
from tests.versions import MISSING, version_of


@pytest.mark.parametrize(
    ("results", "passed", "words"),
    [
        ([True] * TIMES, TIMES, "FLAKY"),
        ([False], 0, "failed again"),
        ([True, True, False], 2, "failed again"),
        ([True, None], 1, "ended after 1 of 5"),
        ([True, True, None], 2, "FLAKY"),
    ],
)
def test_five_passes_make_it_flaky(results: list[bool | None], passed: int, words: str) -> None:
    left = iter(results)
    result = repeat("test_a", lambda _: next(left), end=10, clock=lambda: 0.0)
    assert list(left) == []
    assert (result.passed, result.is_flaky) == (passed, words == "FLAKY")
    assert words in str(result)


def test_a_long_test_is_not_repeated_without_end() -> None:
    now = 0.0
    given = []

    def passes(seconds: float) -> bool:
        nonlocal now
        given.append(seconds)
        now += 700
        return True

    result = repeat("test_a", passes, SECONDS_MAX, lambda: now)
    assert given == [SECONDS_MAX]
    assert f"{SECONDS_MAX} s ended after 1 of 5" in str(result)


OUTPUT = """
tests/a.py::test_x seed 1: passed
____________ test_x[the first] ____________
assert 1 == 2
____________ TestLog.test_x[the first] ____________
E   You can add @seed(77) to this test to reproduce this failure.
____________ ERROR at setup of test_y ____________
------ Captured stdout setup ------
chaos: seed 462, 30 rounds
"""


@pytest.mark.parametrize(
    ("test", "seed"),
    [
        ("tests/a.py::TestLog::test_x[the first]", "77"),
        ("tests/a.py::test_x[the first]", None),
        ("tests/a.py::test_y", "462"),
        ("tests/a.py::test_z", None),
    ],
)
def test_the_seed_is_that_of_the_test(test: str, seed: str | None) -> None:
    assert seed_of(test, OUTPUT) == seed


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ((sys.executable, "-c", "print('program 1.7.1 (librdkafka 2.0.2)')"), "1.7.1"),
        ((sys.executable, "-c", "raise SystemExit('1.7.1')"), MISSING),
        (("no-such-program",), MISSING),
    ],
)
def test_a_version_is_found_or_missing(command: tuple[str, ...], version: str) -> None:
    assert version_of(*command) == version
