"""What a chart shows, without how it is drawn: `charts.js` draws it. The JSON has the fields of these classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

HEIGHT_PX = 300


@dataclass(frozen=True, slots=True)
class Line:
    """Values at the places of the chart's x axis. None is a gap."""

    name: str
    values: Sequence[float | None]
    colour: str = ""
    """A colour of page.css; empty: the next one."""
    is_dashed: bool = False
    is_faint: bool = False
    x: Sequence[float] = ()
    """Places of its own, if they are not those of the chart."""


@dataclass(frozen=True, slots=True)
class View:
    """One of the things that a chart can show at the same place."""

    name: str
    unit: str
    """`B/s`, `operations/s`, `records/s`, `records`, `ms` or `B`."""
    lines: Sequence[Line]
    is_stacked: bool = False
    is_log: bool = False
    categories: Sequence[str] = ()
    """Of bars: their names; the lines have a value for each."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the chart at a place of the x axis."""

    at: float
    label: str
    colour: str = "red"


@dataclass(frozen=True, slots=True)
class Span:
    """From here to there on the x axis; `row`: the row of a chart of kind `spans`."""

    begin: float
    end: float
    row: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """`kind`: `time` (x in seconds), `quantiles` (x is a quantile), `rates` (x is a rate), `bars`, `spans` (rows of spans in time)."""

    id: str
    kind: str
    title: str
    views: Sequence[View]
    x: Sequence[float] = ()
    note: str = ""
    marks: Sequence[Mark] = ()
    spans: Sequence[Span] = ()
    bands: Sequence[Span] = ()
    """Of a chart in time: when its values say little."""
    seconds: float = 0.0
    """The end of the x axis of a chart in time."""
    interval: float = 0.0
    """How long after its x a value holds, in seconds; 0: the values are of a moment."""
    height_px: int = HEIGHT_PX

    def to_json(self) -> dict[str, Any]:
        return {name: _short(value) for name, value in asdict(self).items()}


def _short(value: Any) -> Any:
    """The same with six significant digits, which a chart cannot show better, and None for what JSON cannot say."""
    if isinstance(value, float):
        return None if not isfinite(value) else int(value) if value.is_integer() else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value
