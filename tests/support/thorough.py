"""Cases that only `make test-thorough` runs, or only `make test-release`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def thorough(*values: Any) -> Any:
    """One case of a `parametrize` with the marker `thorough`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def release(*values: Any) -> Any:
    """One case of a `parametrize` with the marker `release`."""
    return pytest.param(*values, marks=pytest.mark.release)


def first_in_quick_run(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The cases of a `parametrize` with one argument: all but the first `count` have the marker `thorough`."""
    return [value if index < count else thorough(value) for index, value in enumerate(values)]


ONE_IN = 1 if os.environ.get("OTTLA_EVERY_PLACE") else 5
MANY_PLACES = pytest.param(ONE_IN, marks=[pytest.mark.thorough, pytest.mark.timeout(900)])
exhaustive = pytest.mark.parametrize("one_in", [80, MANY_PLACES], ids=["few", "many"])
"""For a test that could try every place: `one_in` is 80 in the quick run, which takes one place in eighty, and 5 in the thorough run.
With OTTLA_EVERY_PLACE=1 in the environment, as in a release run, that takes every place: some 14 minutes of a processor."""
