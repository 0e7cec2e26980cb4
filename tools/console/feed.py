"""What open pages get: first everything, then only what has changed. A page that reads slowly gets the latest, not every step."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from tools.console.state import SECTIONS, Change, State, changed, merged

LINES_MAX = 500
POINTS_MAX = 300
"""Lines of the timeline, and points of the charts, that a new page gets."""


class Page:
    """What one open page has not got yet."""

    def __init__(self, state: State, lines: Iterable[Any], points: Iterable[Any]) -> None:
        self._change: Change = {section: dict(entries) for section, entries in state.items()}
        self._is_first = True
        self._lines = deque(lines, LINES_MAX)
        self._points = deque(points, POINTS_MAX)
        self._has_news = asyncio.Event()
        self._has_news.set()

    def put(self, change: Change, lines: Iterable[Any] = (), points: Iterable[Any] = ()) -> None:
        merged(self._change, change)
        self._lines.extend(lines)
        self._points.extend(points)
        self._has_news.set()

    async def next(self) -> str:
        """The next message: JSON with `change`, and if there are some `lines` and `points`; `whole` in the first one."""
        await self._has_news.wait()
        self._has_news.clear()
        message: dict[str, Any] = {"change": self._change}
        if self._is_first:
            message["whole"] = True
        if self._lines:
            message["lines"] = list(self._lines)
        if self._points:
            message["points"] = list(self._points)
        self._change, self._is_first = {}, False
        self._lines.clear()
        self._points.clear()
        return json.dumps(message, separators=(",", ":"))


class Feed:
    """The state, the last lines and points, and the open pages."""

    def __init__(self) -> None:
        self.state: State = {section: {} for section in SECTIONS}
        self._lines: deque[Any] = deque(maxlen=LINES_MAX)
        self._points: deque[Any] = deque(maxlen=POINTS_MAX)
        self._pages: set[Page] = set()

    def open(self) -> Page:
        page = Page(self.state, self._lines, self._points)
        self._pages.add(page)
        return page

    def close(self, page: Page) -> None:
        self._pages.discard(page)

    def set(self, section: str, entries: Mapping[str, Any]) -> None:
        """Replaces a section, and tells the pages what is different."""
        change = changed(self.state[section], entries)
        if change:
            self.state[section] = dict(entries)
            self._put({section: change})

    def add_lines(self, lines: Iterable[Any]) -> None:
        lines = list(lines)
        if lines:
            self._lines.extend(lines)
            self._put({}, lines)

    def add_point(self, point: Any) -> None:
        self._points.append(point)
        self._put({}, (), [point])

    def _put(self, change: Change, lines: Iterable[Any] = (), points: Iterable[Any] = ()) -> None:
        for page in self._pages:
            page.put(change, lines, points)
