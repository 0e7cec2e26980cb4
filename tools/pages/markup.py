"""HTML: text from outside is escaped here, and a page contains everything that it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from tools.pages.charts import Chart

LONG = 48
"""A cell with more characters than this may take several lines."""
NUMBER = re.compile(r"–|[+−]?\d[\d,.]*(e-\d+)?( \S+)?")
SHOWN_ROWS = 200
"""A table shows at most this many rows and says how many there are."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is HTML already. Only this module and SVG drawings make it from text."""

    html: str


def text(value: Any) -> str:
    """A value as HTML."""
    return value.html if isinstance(value, Markup) else escape(str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], marked: Iterable[int] = ()) -> Markup:
    """A table; a column of numbers and quantities is aligned to the right. `marked`: rows that are shown as bad."""
    bad, shown = set(marked), rows[:SHOWN_ROWS]
    numeric = [bool(shown) and all(_is_number(row[at]) for row in shown) for at in range(len(header))]

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "".join(
            f"<{tag}{' class=number' if right else ' class=long' if _is_long(value) else ''}>{text(value)}</{tag}>"
            for value, right in zip(values, numeric, strict=True)
        )

    body = "".join(f"<tr{' class=bad' if at in bad else ''}>{cells('td', row)}</tr>" for at, row in enumerate(shown))
    more = f'<p class="soft">The first {SHOWN_ROWS} of {len(rows):,} rows.</p>' if len(rows) > SHOWN_ROWS else ""
    return Markup(
        f'<div class="scroll" tabindex="0"><table><thead><tr>{cells("th", header)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and NUMBER.fullmatch(value) is not None


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > LONG


def tiles(values: Iterable[tuple[str, str, str]]) -> Markup:
    """Key figures: (name, value, note)."""
    return Markup(
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class='note'>{escape(note)}</dd></div>"
            for name, value, note in values
        )
        + "</dl>"
    )


def banner(state: str, words: str, sentences: Iterable[str], evidence: Markup | None = None) -> Markup:
    """The verdict. `state`: `good`, `warning` or `bad`."""
    sign = {"good": "✓", "warning": "!", "bad": "✕"}[state]
    more = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return Markup(
        f'<section class="banner {state}" role="status"><span class="sign" aria-hidden="true">{sign}</span>'
        f"<div><h2>{escape(words)}</h2>{more}{evidence.html if evidence else ''}</div></section>"
    )


def section(title: str, words: str, *content: Markup) -> Markup:
    note = f'<p class="soft">{escape(words)}</p>' if words else ""
    return Markup(f"<section><h2>{escape(title)}</h2>{note}{''.join(part.html for part in content)}</section>")


def folded(title: str, content: Markup, is_open: bool = False) -> Markup:
    """Content that a click shows."""
    return Markup(f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{content.html}</details>")


def figure(chart: Chart, is_wide: bool = True) -> Markup:
    """The place of a chart, with its title, its note and the buttons of its views."""
    buttons = ""
    if len(chart.views) > 1:
        buttons = (
            '<div class="views" role="group">'
            + "".join(
                f'<button type="button" data-view="{at}" aria-pressed="{"true" if at == 0 else "false"}">'
                f"{escape(view.name)}</button>"
                for at, view in enumerate(chart.views)
            )
            + "</div>"
        )
    note = f'<p class="soft">{escape(chart.note)}</p>' if chart.note else ""
    return Markup(
        f'<figure data-chart="{escape(chart.id)}" class="{"wide" if is_wide else "half"}"><figcaption>'
        f"<h2>{escape(chart.title)}</h2>{buttons}</figcaption>{note}"
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}" style="min-height:{chart.height_px}px"></div></figure>'
    )


def json_for_script(value: Any) -> str:
    """JSON that ends no script element, whatever the texts in it."""
    compact = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return compact.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page(title: str, subtitle: str, content: Iterable[Markup], charts: Iterable[Chart]) -> str:
    """A whole page with charts."""
    here = files(__package__)
    script, library = (here.joinpath(name).read_text("utf-8") for name in ("charts.js", "echarts/echarts.min.js"))
    return whole_page(
        title,
        subtitle,
        "".join(part.html for part in content) + here.joinpath("charts.html").read_text("utf-8"),
        ("charts", [chart.to_json() for chart in charts]),
        [library, script],
    )


def whole_page(
    title: str,
    subtitle: str,
    content: str,
    data: tuple[str, Any],
    scripts: Sequence[str],
    style: str = "",
    name: str = "",
) -> str:
    """A page whose policy forbids the browser to fetch anything. `data`: the id of the element that the scripts read, and its JSON.

    `style` follows that of all pages; `name` is the class of its content.
    """
    here = files(__package__)
    element, value = data
    return (
        here.joinpath("page.html")
        .read_text("utf-8")
        .format(
            title=escape(title),
            subtitle=escape(subtitle),
            style=here.joinpath("page.css").read_text("utf-8") + style,
            name=name,
            content=content,
            element=element,
            data=json_for_script(value),
            scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        )
    )
