"""The pages in a headless Chromium: every chart is drawn, hover and zoom work, nothing is wider than a phone (RPL-3)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import report_data
from tests.support.browser import BROWSER, driven
from tests.support.thorough import thorough
from tools.replay.pages.comparison_page import comparison_page
from tools.replay.pages.run_page import run_page

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium; the report pages were not opened (on Debian: apt-get install chromium-headless-shell)",
)
DRIVEN = """<script>
addEventListener("error", (event) => { errors.push(event.message); });
addEventListener("securitypolicyviolation", (event) => { errors.push(event.violatedDirective); });
const errors = [];
addEventListener("load", () => setTimeout(() => {
  const charts = [...document.querySelectorAll("[data-chart]")];
  const place = charts[0].querySelector(".chart");
  const root = place.querySelector("svg").parentNode, box = root.getBoundingClientRect();
  const mouse = (type, share) => root.dispatchEvent(new MouseEvent(
    type, { bubbles: true, clientX: box.left + share * box.width, clientY: box.top + 120, button: 0, which: 1 }));
  mouse("mousemove", 0.4); mouse("mousedown", 0.4); mouse("mousemove", 0.5); mouse("mousemove", 0.6); mouse("mouseup", 0.6);
  const zoomed = charts.slice(0, 2).map((figure) => {
    const { startValue, endValue } = echarts.getInstanceByDom(figure.querySelector(".chart")).getOption().dataZoom[0];
    return endValue - startValue;
  });
  mouse("mousemove", 0.45);
  setTimeout(() => {
    document.title = JSON.stringify({
      errors, zoomed, hover: place.innerText, width: innerWidth, wide: document.documentElement.scrollWidth > innerWidth,
      drawn: charts.map((figure) => [figure.dataset.chart, figure.querySelectorAll("svg path").length]),
      theme: document.documentElement.dataset.theme, images: document.images.length,
    });
  }, 300);
}, 100));
</script>"""


@pytest.mark.parametrize(
    ("page", "width", "theme"),
    [
        (run_page(report_data.plan(), report_data.analysis(), report_data.verdict()), 390, "dark"),
        thorough(run_page(report_data.plan(), report_data.bad_analysis(), report_data.bad_verdict()), 1280, "light"),
        thorough(comparison_page(report_data.comparison()), 1280, "dark"),
    ],
    ids=["run-on-a-phone", "bad-run", "comparison"],
)
def test_a_page_works_in_a_browser(page: str, width: int, theme: str, tmp_path: Path) -> None:
    seen = driven(page, DRIVEN, tmp_path, width, theme)
    assert seen["errors"] == []
    assert [name for name, paths in seen["drawn"] if paths < 3] == []
    assert seen["images"] == 0, "a name from outside became an element"
    assert seen["width"] <= max(width, 600), "a phone, or the narrowest window that the browser has"
    assert not seen["wide"]
    assert seen["theme"] == theme
    assert 0 < seen["zoomed"][0] < 30
    assert seen["zoomed"][1] == pytest.approx(seen["zoomed"][0]), "charts in time zoom together"
    assert re.search(r"\d s to \d", seen["hover"]), "the hint under the mouse"
