"""The page of `ottla timeline --html`: one file, which fetches nothing. `drawing.py` computes, `page.js` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from tools.pages.markup import json_for_script
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
    shared = files("tools.pages").joinpath("page.css").read_text(encoding="utf-8")
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return TEMPLATE.format(
        title=escape(title),
        subtitle=escape(subtitle),
        style=shared + style,
        rows="".join(_row(line, at, start_ms) for at, line in enumerate(lines)),
        data=json_for_script(data),
        script=script,
    )


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


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
<script>document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"</script>
</head>
<body>
<main class="timeline">
<header><div><h1>{title}</h1><p class="soft">{subtitle}</p></div>
<button type="button" id="theme" hidden>Dark</button></header>
<figure class="wide" id="figure" hidden>
<figcaption><h2>Brokers in time</h2>
<div class="tools"><label>Partition <select id="partition"></select></label>
<span role="group" aria-label="Zoom"><button type="button" id="earlier" aria-label="Earlier">◀</button>
<button type="button" id="out" aria-label="Zoom out">−</button><button type="button" id="in" aria-label="Zoom in">+</button>
<button type="button" id="later" aria-label="Later">▶</button><button type="button" id="whole">Whole</button></span></div>
</figcaption>
<div class="legend soft" id="legend"></div>
<div id="drawing" tabindex="0" role="img"
 aria-label="Lanes of brokers with control requests as arrows. Arrow keys move, plus and minus zoom, 0 shows everything."></div>
<p id="details" class="soft" aria-live="polite">Point at a dot or an arrow, or choose a line of the story.</p>
</figure>
<section><h2>The story</h2>
<div class="story"><table><thead><tr><th>time</th><th>who</th><th>what</th><th>rule</th></tr></thead><tbody>{rows}</tbody></table></div>
</section>
<noscript><p>The drawing needs JavaScript. The story does not.</p></noscript>
<footer class="soft">Drag to zoom, double-click for the whole. The rules are in docs/RULES.md.</footer>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
