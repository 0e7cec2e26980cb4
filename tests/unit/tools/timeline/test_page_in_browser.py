"""The page of `ottla timeline --html` in a headless Chromium: it is drawn, keys and the mouse work, it fits a phone (OBS-1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.browser import BROWSER, driven
from tools.cli import main

RECORDED = Path(__file__).parents[3] / "recorded" / "failover"
pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium; the timeline's page was not opened (on Debian: apt-get install chromium-headless-shell)",
)
DRIVEN = """<script>
const errors = [];
addEventListener("error", (event) => { errors.push(event.message); });
addEventListener("securitypolicyviolation", (event) => { errors.push(event.violatedDirective); });
addEventListener("load", () => setTimeout(() => {
  const drawing = document.getElementById("drawing"), details = document.getElementById("details");
  const count = (selector) => drawing.querySelectorAll(selector).length;
  const key = (name) => drawing.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const first = { dots: count(".dot"), arrows: count(".arrow"), leader: count(".leader"), hw: count(".hw"), errors: count(".error") };
  const said = [];
  key("ArrowDown"); said.push(details.textContent);
  document.querySelectorAll("tr[data-line]")[2].click(); said.push(details.textContent);
  const chosen = document.querySelectorAll("tr.chosen").length;
  const before = count(".dot");
  for (let at = 0; at < 8; at += 1) key("+");
  const zoomed = count(".dot");
  key("0");
  const whole = count(".dot");
  const outside = [...drawing.querySelectorAll("text")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && box.left < drawing.getBoundingClientRect().left - 1;
  }).map((one) => one.textContent);
  document.title = JSON.stringify({ errors, first, said, chosen, before, zoomed, whole, outside,
    wide: document.documentElement.scrollWidth > innerWidth, theme: document.documentElement.dataset.theme });
}, 100));
</script>"""


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def test_the_page_works_in_a_browser(width: int, theme: str, tmp_path: Path) -> None:
    files = [*sorted(map(str, RECORDED.glob("*.jsonl"))), "--errors", str(RECORDED / "clients" / "errors.jsonl")]
    done = CliRunner().invoke(main, ["timeline", *files, "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    seen = driven((tmp_path / "page.html").read_text(), DRIVEN, tmp_path, width, theme)
    assert seen["errors"] == []
    assert seen["first"]["dots"] > 20
    assert seen["first"]["arrows"] >= 12
    assert seen["first"]["leader"] >= 2
    assert (seen["first"]["hw"], seen["first"]["errors"]) == (1, 2)
    assert "you: kill the process of broker 2" in seen["said"][0], "the key chose the first line"
    assert "raises the controller epoch to 2" in seen["said"][1], "the click chose the third line"
    assert seen["chosen"] == 1
    assert seen["zoomed"] < seen["before"] <= seen["whole"]
    assert seen["outside"] == []
    assert not seen["wide"]
    assert seen["theme"] == theme
