"""The docs site: each page has a place in it, and a link that leads nowhere is found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, ROOT, load_script, name_of, text_of

site = load_script("docs/make_site.py")


def test_each_page_is_in_the_index_once() -> None:
    index = repr(tomllib.loads(text_of(ROOT / "zensical.toml"))["project"]["nav"])
    placed = re.findall(r"'([\w/]+\.md)'", index)
    assert sorted(placed) == sorted(name_of(page).replace("README", "index") for page in PAGES)


def test_links_that_lead_nowhere_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top"></h1><a href="docs/a.html#here"></a><img src="none.svg">')
    (tmp_path / "docs" / "a.html").write_text(
        '<p id="here"><a href="../index.html#top"><a href="#gone"><a href="https://x.y">'
    )
    monkeypatch.setattr(site, "BUILT", tmp_path)
    assert sorted(site.broken_links()) == ["docs/a.html: #gone", "index.html: none.svg"]
