"""Numbers in texts from outside: settings, options, files, znodes. One strict reading for all of them.

Kafka trims a setting (`ConfigDef.parseType`) and hands it to Java's `Integer.parseInt`, `Long.parseLong` or `Double.parseDouble`.
Of what these take, this takes ASCII digits with an optional sign, and for doubles a point and an exponent. Refused on purpose:
digits of other scripts, hexadecimal, `1f`, and `NaN` and `Infinity`, which pass Kafka's limits because every comparison with NaN is
false. Python's own `1_000` is no number in Kafka either.
"""

from __future__ import annotations

import math
import re

BLANKS = "".join(map(chr, range(0x21)))
"""What Java's String.trim removes."""
DIGITS_MAX = 400
"""Longer texts are no numbers that anybody means. A double has at most 309 digits before its point."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[0-9]+")


def whole_number(text: str) -> int:
    """`text` as a whole number, blanks around it ignored. Raises ValueError."""
    trimmed = text.strip(BLANKS)
    if len(trimmed) > DIGITS_MAX or not _WHOLE.fullmatch(trimmed):
        raise ValueError("a whole number is needed")
    return int(trimmed)


def decimal_number(text: str) -> float:
    """`text` as a finite number, blanks around it ignored. Raises ValueError."""
    trimmed = text.strip(BLANKS)
    if len(trimmed) > DIGITS_MAX or not _DECIMAL.fullmatch(trimmed) or not math.isfinite(value := float(trimmed)):
        raise ValueError("a number is needed")
    return value


def is_plain_number(text: str) -> bool:
    """True for digits 0 to 9 only, no sign and no blanks, as ids, ports and numbers in names are written."""
    return len(text) <= DIGITS_MAX and _PLAIN.fullmatch(text) is not None
