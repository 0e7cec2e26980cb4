"""The broker's metrics in Prometheus text, at `http://<metrics.listener>/metrics`: docs/METRICS.md.

A thread of the server makes the page, so a scrape does not block the event loop. It only reads plain numbers, and pauses, so that the
loop gets the interpreter (`exposition.paced`). There is no page unless `metrics.listener` names an address: anyone who reaches the
address may read the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from broker.process.exposition import Section, paced
from broker.process.http_pages import Answer, Page, PageServer
from broker.process.loop_watchdog import TurnTimes
from broker.process.process_sections import loop_section, process_section, started_at

NO_PAGES: Mapping[str, Page] = MappingProxyType({})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """Serves the page. Raises OSError if the address cannot be used."""

    def __init__(
        self,
        host: str,
        port: int,
        times: TurnTimes,
        pages: Mapping[str, Page] = NO_PAGES,
        sections: Sequence[Section] = (),
    ) -> None:
        """Port 0 means a free port. `self.port` is the bound port. `pages`: further pages, by the start of their path. `sections`: what
        the metrics page has besides the process and its loop."""
        started_s = started_at()
        self._sections = [lambda: loop_section(times), lambda: process_section(started_s), *sections]
        self._pages = pages
        self._server = PageServer(host, port, self._page, "metrics")
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()

    def _page(self, method: str, path: str) -> Answer:
        """The metrics have every path that no other page has."""
        for start, page in self._pages.items():
            if path == start or path.startswith(f"{start}/"):
                return page(method, path)
        return Answer(paced(self._sections), content_type=CONTENT_TYPE)
