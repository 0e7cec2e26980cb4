"""Parses numbers in texts from outside: settings, options, files, znodes. One strict parser for all of them.

Kafka trims a setting (`ConfigDef.parseType`) and parses it with Java's `Integer.parseInt`, `Long.parseLong` or `Double.parseDouble`.
This parser accepts only some of their forms: ASCII digits with an optional sign, and for doubles a point and an exponent. It
deliberately refuses digits of other scripts, hexadecimal, `1f`, `NaN` and `Infinity`. Kafka's limits do not stop NaN, because every
comparison with NaN is false. Python's `1_000` is not a number in Kafka either.
"""

from __future__ import annotations

import math
import re

BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes."""
DIGITS_MAX = 400
"""Longer texts are never meant as numbers. A double has at most 309 digits before its point."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[0-9]+")


def whole_number(text: str) -> int:
    """`text` as a whole number, ignoring blanks around it. Raises ValueError."""
    trimmed = text.strip(BLANKS)
    if len(trimmed) > DIGITS_MAX or not _WHOLE.fullmatch(trimmed):
        raise ValueError("expected a whole number")
    return int(trimmed)


def decimal_number(text: str) -> float:
    """`text` as a finite number, ignoring blanks around it. Raises ValueError."""
    trimmed = text.strip(BLANKS)
    if len(trimmed) > DIGITS_MAX or not _DECIMAL.fullmatch(trimmed) or not math.isfinite(value := float(trimmed)):
        raise ValueError("expected a number")
    return value


def is_plain_number(text: str) -> bool:
    """Whether `text` has only the digits 0 to 9, without sign or blanks, as in ids, ports and numbers in names."""
    return len(text) <= DIGITS_MAX and _PLAIN.fullmatch(text) is not None
