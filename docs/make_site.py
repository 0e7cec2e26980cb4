"""`make docs`: the pages as a site in .site/built, with a search. Fails if a link or a picture of the site leads nowhere.

    python docs/make_site.py

The source keeps the places that the pages have in the repository, so that their links fit; README.md is its index.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".site"
SOURCE, BUILT = SITE / "source", SITE / "built"


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def gather() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(ROOT / "zensical.toml", SITE)
    shutil.copy(ROOT / "CONTRIBUTING.md", SOURCE)
    shutil.copy(ROOT / "README.md", SOURCE / "index.md")
    for page in SOURCE.rglob("*.md"):
        page.write_text(page.read_text(encoding="utf-8").replace("README.md", "index.md"), encoding="utf-8")


def broken_links() -> list[str]:
    """`PAGE: LINK` for each link within the site whose file or anchor is not there."""
    pages = {file: Page(file) for file in BUILT.rglob("*.html") if file.name != "404.html"}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() and (target / "index.html").exists() else target
            anchor = unquote(parts.fragment)
            is_there = target.exists() and (not anchor or target not in pages or anchor in pages[target].anchors)
            if not is_there:
                broken.append(f"{file.relative_to(BUILT)}: {link}")
    return broken


def main() -> int:
    gather()
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if subprocess.run(zensical, cwd=SITE, check=False).returncode != 0:
        return 1
    if broken := broken_links():
        print("These links of the site lead nowhere:", *broken, sep="\n  ", file=sys.stderr)
        return 1
    print(f"The site is in {BUILT.relative_to(ROOT)}: python -m http.server --directory {BUILT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
