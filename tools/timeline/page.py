"""The page of `ottla timeline --html`: one file, which fetches nothing. `drawing.py` computes, `page.js` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from tools.pages.markup import whole_page
from tools.timeline import words
from tools.timeline.drawing import Drawing
from tools.timeline.merging import Event
from tools.timeline.story import Filter, Line

ERRORS_MAX = 5000


class Drawn(NamedTuple):
    """Which time the page shows, in milliseconds: from `begin_ms` to `end_ms`; second 0 is `start_ms`."""

    start_ms: float
    begin_ms: float
    end_ms: float


def page_of(
    events: Iterable[Event],
    drawn: Drawn,
    lines: Sequence[Line],
    clocks: str,
    errors: Sequence[Mapping[str, Any]],
    wanted: Filter,
) -> str:
    """The page. `events`: from the first one of the cluster on. The earlier ones say who leads when the page begins."""
    start_ms = drawn.start_ms
    drawing = Drawing(start_ms)
    begin_ms = end_ms = None
    for event in events:
        if event.at_ms < drawn.begin_ms:
            drawing.add_earlier(event)
        elif event.at_ms <= drawn.end_ms:
            drawing.add(event)
            begin_ms = event.at_ms if begin_ms is None else begin_ms
            end_ms = event.at_ms
    begin_ms = start_ms if begin_ms is None else begin_ms
    end_ms = start_ms + 1000 if end_ms is None else end_ms
    data = drawing.to_json(begin_ms, end_ms, lines, wanted.topic)
    data["errors"] = [
        {
            "t": round((row["time_ms"] - start_ms) / 1000, 4),
            "client": str(row.get("client", "client")),
            "error": str(row["error"]),
        }
        for row in errors[:ERRORS_MAX]
        if begin_ms <= row["time_ms"] <= end_ms
    ]
    moment = datetime.fromtimestamp(start_ms / 1000, UTC)
    title = "What happened in the cluster"
    subtitle = f"0 s is {moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC. {clocks}"
    here = files(__package__)
    style, script, body = (here.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    rows = "".join(_row(line, at, start_ms) for at, line in enumerate(lines))
    return whole_page(title, subtitle, body.format(rows=rows), ("data", data), [script], style, "timeline")


def _row(line: Line, at: int, start_ms: float) -> str:
    cells = (
        ("time", words.seconds(line.at_ms - start_ms)),
        ("who", line.who),
        ("what", line.text),
        ("rule", line.rule),
    )
    mark = " class=trigger" if line.is_trigger else ""
    inner = "".join(f'<td class="{name}">{escape(text)}</td>' for name, text in cells)
    return f'<tr tabindex="0" data-line="{at}"{mark}>{inner}</tr>'
