"""Numbers as a person reads them. None is an en dash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NONE = "–"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def digits(value: float) -> str:
    """Three significant digits, and no fraction from 100 on."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 0.001 else f"{value:.1e}"


def scaled(value: float | None, unit: str = "") -> str:
    """With a decimal prefix: 12,345,678 of `B/s` is `12.3 MB/s`; below 10,000 of no bytes, all digits."""
    if value is None:
        return NONE
    if abs(value) < 10_000 and not unit.startswith("B"):
        return f"{digits(value)} {unit}".rstrip()
    prefix = ""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            break
        value /= 1000
    space = "" if unit.startswith("B") or not prefix else " "
    return f"{digits(value)} {prefix}{space}{unit}".rstrip()


def milliseconds(value: float | None) -> str:
    """From 1,000 ms on in seconds."""
    if value is None:
        return NONE
    return f"{digits(value)} ms" if abs(value) < 1000 else f"{value / 1000:,.2f} s"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.2f} s" if abs(value) < 100 else f"{value:,.0f} s"


def moment(value: float | None) -> str:
    """A time since the start of the run."""
    return NONE if value is None else f"{value:,.1f} s"


def percent(value: float | None) -> str:
    """A change: `+12 %`."""
    return NONE if value is None else f"{value * 100:+.3g} %".replace("-", "−")


OF_UNIT: dict[str, Callable[[float | None], str]] = {
    "": lambda value: NONE if value is None else count(value) if float(value).is_integer() else digits(value),
    "ms": milliseconds,
    "s": seconds,
}


def quantity(value: Any, unit: str) -> str:
    """A number of any unit, such as `ms`, `s`, `bytes/s`, `operations/s`, `records` or none."""
    if unit in OF_UNIT:
        return OF_UNIT[unit](value)
    if value is not None and "/" not in unit and float(value).is_integer():
        return f"{count(value)} {unit}"
    return scaled(value, unit.replace("bytes", "B"))
