"""The quotas that entities can have, and their values as ZooKeeper has them (`QuotaConfigs` in Kafka). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.settings.config import INT_MAX, LONG_MAX

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

LONG: Final = "LONG"
DOUBLE: Final = "DOUBLE"
INT: Final = "INT"

OF_CLIENTS: Mapping[str, str] = MappingProxyType(
    {PRODUCER_BYTE_RATE: LONG, CONSUMER_BYTE_RATE: LONG, REQUEST_PERCENTAGE: DOUBLE, CONTROLLER_MUTATION_RATE: DOUBLE}
)
"""The quotas of users and client ids, with Kafka's type of their values."""
OF_ADDRESSES: Mapping[str, str] = MappingProxyType({CONNECTION_CREATION_RATE: INT})
"""The quotas of IP addresses."""

EPSILON: Final = 1e-6
WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
LIMIT_OF: Mapping[str, int] = MappingProxyType({LONG: LONG_MAX, INT: INT_MAX})


def read_quota(kind: str, text: str) -> float:
    """The value of a quota of this type. Raises ValueError."""
    if kind == DOUBLE:
        return float(text)
    if not WHOLE.fullmatch(text) or abs(int(text)) > LIMIT_OF[kind]:
        raise ValueError(f"no {kind} value")
    return float(int(text))


def quota_text(kind: str, value: float) -> str:
    """The text that ZooKeeper gets for a quota of this type. Raises ValueError for a value that the type does not have."""
    if kind == DOUBLE:
        return java_double(value)
    limit = LIMIT_OF[kind]
    whole = 0 if value != value else int(min(max(value + EPSILON, -limit - 1), limit))
    if abs(whole - value) > EPSILON:
        raise ValueError(f"must be a {kind} value")
    return str(whole)


def java_double(value: float) -> str:
    """The number as Java's `Double.toString` writes it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = f"{value!r}"
        return text if "e" not in text else f"{value:f}"
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        # Python writes 1e7 to 1e16 as plain digits.
        whole = digits.partition(".")[0]
        sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
        fraction = digits.partition(".")[2]
        exponent = str(len(whole) - 1)
        rest = (whole[1:] + fraction).rstrip("0") or "0"
        return f"{sign}{whole[0]}.{rest}E{exponent}"
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"
