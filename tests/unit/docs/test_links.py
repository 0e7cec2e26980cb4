"""Links between the pages lead somewhere, and the files that they name exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.unit.docs.pages import INLINE, LINK, PAGES, ROOT, anchors, blocks, name_of, prose, text_of

FILE = re.compile(r"[\w./-]+\.(?:md|py|toml|txt|yml)")


def every_file() -> list[str]:
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [str(Path("/", Path(folder).relative_to(ROOT), name)) for name in files]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(text_of(page))):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(text_of(target)), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme = LINK.findall(text_of(ROOT / "README.md"))
    assert {name_of(page) for page in PAGES} - {link.partition("#")[0] for link in readme} == {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    files = every_file()
    named = [name for name in INLINE.findall(prose(text_of(page))) if FILE.fullmatch(name)]
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_the_files_in_the_map_exist() -> None:
    names = {Path(file).name for file in every_file()}
    tree = blocks(text_of(ROOT / "docs" / "ARCHITECTURE.md"), "")[0]
    assert [name for name in re.findall(r"(?<![*\w])\w[\w.]*\.py\b", tree) if name not in names] == []
