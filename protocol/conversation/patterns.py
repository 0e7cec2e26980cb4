"""Names in which `*` and `?` stand for any characters; all others stand for themselves, also `[`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache

PATTERNS_MAX = 5000
"""So many are kept compiled: a thousand rules have five names each."""
ANY = "*"


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern is one of this name."""
    if pattern == ANY:
        return True
    if ANY not in pattern and "?" not in pattern:
        return name == pattern
    return _compiled(pattern)(name) is not None


@lru_cache(PATTERNS_MAX)
def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern.replace("[", "[[]"))).match
