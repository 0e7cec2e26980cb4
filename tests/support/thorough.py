"""Cases that only `make test-thorough` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough(*values: Any) -> Any:
    """One case of a `parametrize` with the marker `thorough`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def first_in_quick_run(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The cases of a `parametrize` with one argument: all but the first `count` have the marker `thorough`."""
    return [value if index < count else thorough(value) for index, value in enumerate(values)]


EVERY_PLACE = pytest.param(1, marks=[pytest.mark.thorough, pytest.mark.timeout(900)])
exhaustive = pytest.mark.parametrize("one_in", [80, EVERY_PLACE], ids=["sample", "all"])
"""For a test that tries every place: `one_in` is 80 in the quick run, which takes one place in eighty, and 1 in the thorough run."""
