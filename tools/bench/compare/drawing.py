"""A comparison as an SVG for a page: a bar for each row, as long as its ratio, on a logarithmic axis that starts at Kafka's 1."""

from __future__ import annotations

from html import escape
from math import log10

from tools.bench.compare.printing import amount
from tools.bench.compare.results import OURS, Comparison
from tools.bench.compare.rows import Row

WIDTH, ROW, TOP, BOTTOM = 910, 26, 58, 44
BARS_FROM, BARS_TO = 350, 690
LOWEST, HIGHEST = 0.5, 10.0
TICKS = (0.5, 1, 2, 5, 10)
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; } .soft { fill: #57606a; font-size: 12px; }
  .title { font-size: 15px; font-weight: 600; } .grid { stroke: #d0d7de; } .one { stroke: #57606a; }
  .bar { fill: #2da44e; } .behind { fill: #cf222e; } .spread { stroke: #24292f; } .goal { stroke: #0969da; stroke-width: 2; }
  .page { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .soft { fill: #9198a1; } .grid { stroke: #3d444d; } .one { stroke: #9198a1; }
    .spread { stroke: #e6edf3; } .page { fill: #0d1117; }
  }
"""


def svg(comparison: Comparison) -> str:
    """A complete SVG file, without references to other files."""
    rows = comparison.rows
    height = TOP + ROW * len(rows) + BOTTOM
    bottom = TOP + ROW * len(rows)
    grid = [
        f'<line class="{"one" if tick == 1 else "grid"}" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
        f'<text class="soft" text-anchor="middle" x="{_x(tick):.1f}" y="{TOP - 11}">{tick:g}x</text>'
        for tick in TICKS
    ]
    bars = [_bar(comparison, row, TOP + ROW * number) for number, row in enumerate(rows)]
    rounds = comparison.machine.get("rounds", "")
    conditions = (
        f"{comparison.machine.get('machine', '')}; rounds: {rounds}; {OURS}: {comparison.machine.get(OURS, '')}"
    )
    legend = f"Bar: median of the rounds; thin line: lowest to highest; blue: goal. Right: {escape(comparison.peer)}, {OURS}."
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>Throughput of {OURS} as a multiple of that of {escape(comparison.peer)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="16" y="24">Throughput of {OURS}, as a multiple of that of {escape(comparison.peer)}</text>',
        *grid,
        *bars,
        f'<text class="soft" x="16" y="{bottom + 18}">{legend}</text>',
        f'<text class="soft" x="16" y="{bottom + 35}">{escape(conditions)}</text>',
        "</svg>",
        "",
    ])  # fmt: skip


def _bar(comparison: Comparison, row: Row, y: int) -> str:
    ratio = comparison.ratio(row)
    assert ratio is not None
    start, end = sorted((_x(1), _x(ratio.median)))
    middle = y + ROW / 2
    theirs, ours = (amount(comparison.rate(cluster, row), row.unit) for cluster in (comparison.peer, OURS))
    kind = "bar" if ratio.median >= 1 else "behind"
    return "".join([
        f'<text x="16" y="{middle + 4:.0f}">{escape(row.title)}</text>',
        f'<rect class="{kind}" x="{start:.1f}" y="{y + 5}" width="{max(end - start, 1):.1f}" height="{ROW - 10}"/>',
        f'<line class="spread" x1="{_x(ratio.lowest):.1f}" x2="{_x(ratio.highest):.1f}" y1="{middle}" y2="{middle}"/>',
        f'<line class="goal" x1="{_x(row.goal):.1f}" x2="{_x(row.goal):.1f}" y1="{y + 3}" y2="{y + ROW - 3}"/>',
        f'<text x="{BARS_TO + 12}" y="{middle + 4:.0f}">{ratio.median:.2f}</text>',
        f'<text class="soft" x="{BARS_TO + 58}" y="{middle + 4:.0f}">{escape(theirs)}, {escape(ours)}</text>',
    ])  # fmt: skip


def _x(ratio: float) -> float:
    """The place of a ratio; those outside of the axis are at its ends."""
    place = log10(min(max(ratio, LOWEST), HIGHEST) / LOWEST) / log10(HIGHEST / LOWEST)
    return BARS_FROM + place * (BARS_TO - BARS_FROM)
