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


def folders_of_the_map() -> set[str]:
    """The folders in the tree of ARCHITECTURE.md, as paths: two spaces of indent for each level, several on a line have one parent."""
    found, above = set(), [""]
    for line in blocks(text_of(ROOT / "docs" / "ARCHITECTURE.md"), "")[0].splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        names = re.match(r" *((?:\w+/ *)+)", line)
        assert names is not None, line
        above[level + 1 :] = [f"{above[level]}{names[1].split()[0]}"]
        found |= {f"{above[level]}{name.rstrip('/')}" for name in names[1].split()}
    return found


def test_the_map_has_the_folders_that_exist() -> None:
    """All of those that a broker runs, and the first level of the others."""
    packages = [path.parent.relative_to(ROOT) for path in ROOT.glob("[a-z]*/**/__init__.py")]
    inside = {
        str(path) for path in packages if path.parts[0] in ("protocol", "broker", "controller") or len(path.parts) == 1
    }
    inside |= {str(path) for path in packages if path.parts[0] == "tools" and len(path.parts) == 2}
    mapped = folders_of_the_map()
    assert inside - {"broker/compiled/lib"} - mapped == set()
    assert [name for name in mapped if not (ROOT / name).is_dir()] == []
